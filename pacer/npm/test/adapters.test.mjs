import { test } from "node:test";

import { paced } from "../dist/ai-sdk.js";
import * as index from "../dist/index.js";
import { adapterTests } from "./adapters.mjs";

for (const { name, run } of adapterTests({ ...index, paced })) test(name, run);
