"""Published measurements that no constant of the shipped profiles came from, to judge them by.

Each source is on this page only, but for one: constants of the A100 came from Argonne's rows of the A100
40GB, and profiles of the H100 are judged by its rows of the H100. docs/profile-sources.md lists the sources
of the constants.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Pace:
    """Time between two tokens while so many sequences decode.

    Attributes:
        sequences: Sequences in the batch.
        context: Text of each, tokens.
        ms: Measured.
    """

    sequences: int
    context: int
    ms: float


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Time to the first token of a prompt that is alone.

    Attributes:
        prompt: Tokens.
        ms: Measured.
    """

    prompt: int
    ms: float


@dataclass(frozen=True, slots=True)
class Batch:
    """Time of equal requests that start together, from the first prompt to the last token.

    Attributes:
        sequences: Requests.
        prompt: Tokens of each.
        output: Tokens of each answer.
        ms: Measured.
    """

    sequences: int
    prompt: int
    output: int
    ms: float


Row = Pace | FirstToken | Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Published measurements of one model on one kind of accelerator.

    Attributes:
        judges: Files of the shipped profiles that it judges.
        model: Model measured, a key of `MODELS` or `OTHERS`.
        accelerator: Accelerator measured.
        gpus: Number of them.
        engine: Engine and version.
        note: What differs from vLLM V1 with the shipped profile.
        source: Address.
        rows: Measurements.
    """

    judges: tuple[str, ...]
    model: str
    accelerator: str
    gpus: int = 1
    engine: str
    note: str
    source: str
    rows: tuple[Row, ...]


YOBITEL: Final = "https://github.com/yobitelcomm/bench/tree/eb9dc5c6/validation-runs"
YOBITEL_SWEEP: Final = "https://github.com/yobitelcomm/bench/blob/eb9dc5c6/docs/recipes/concurrency-sweep.md"
LAMBDA: Final = "https://github.com/LambdaLabsML/vllm-benchmark/tree/a9b42a5f/results/prompt_10"
LMDEPLOY: Final = "https://github.com/InternLM/lmdeploy/blob/3e391df4/docs/en/benchmark/a100_fp16.md"
TENSORRT: Final = "https://github.com/NVIDIA/TensorRT-LLM/blob/77d24b5f/docs/source/performance.md"
ARGONNE: Final = "https://github.com/argonne-lcf/LLM-Inference-Bench/blob/4211f5d4/Plots/All_results.csv"
SPLITWISE: Final = "https://github.com/Mutinifni/splitwise-sim/blob/main/data/perf_model.csv"
EB_VLLM: Final = (
    "https://github.com/weifang231/eb-vllm/blob/5ee5518e/reproduce/calibration/"
    "pd_calibration_Llama-3.1-8B-Instruct_H200.json"
)
LLM_D: Final = "https://github.com/natoscott/benchmarks/blob/08ce8f24/llm-d-batch-eval/REPORT-rhoai-3.5ea1.md"
AICONFIGURATOR: Final = "https://github.com/natoscott/benchmarks/blob/02a82d61/aiconfigurator-eval/REPORT.md"

V1: Final = "Texts of about 100 tokens"
OLD_KERNELS: Final = "Kernels and scheduler of 2024"
LANGUAGE_HOST: Final = "An engine of 2023, whose host time shows in every iteration"

TABLES: Final = (
    Table(
        judges=("llama-3-8b-h100.yaml",),
        model="llama-3-8b",
        accelerator="H100",
        engine="vLLM 0.21",
        note=f"{V1}; larger batches were bound by the client.",
        source=YOBITEL_SWEEP,
        rows=(Pace(1, 100, 6.48), Pace(4, 100, 6.59)),
    ),
    Table(
        judges=("mistral-7b-h100.yaml",),
        model="mistral-7b",
        accelerator="H100",
        engine="vLLM 0.21",
        note=f"{V1}. Answers end early, which makes the median time per token uncertain.",
        source=YOBITEL,
        rows=(Pace(4, 100, 7.04),),
    ),
    Table(
        judges=("mistral-7b-h100.yaml", "llama-3-8b-h100.yaml"),
        model="qwen-2-7b",
        accelerator="H100",
        engine="vLLM 0.21",
        note=f"{V1}; another model on the same constants.",
        source=YOBITEL,
        rows=(Pace(4, 100, 6.27),),
    ),
    Table(
        judges=("llama-70b-h100-x4.yaml",),
        model="llama-3-70b",
        accelerator="H100",
        gpus=4,
        engine="vLLM 0.21",
        note=f"{V1}; the larger vocabulary of Llama 3.",
        source=YOBITEL,
        rows=(Pace(4, 100, 15.86),),
    ),
    Table(
        judges=("llama-70b-h100-x4.yaml",),
        model="qwen-2.5-72b",
        accelerator="H100",
        gpus=4,
        engine="vLLM 0.22",
        note=f"{V1}; another model on the same constants, taken to run on four GPUs as Llama-3.1-70B did.",
        source=YOBITEL,
        rows=(Pace(1, 100, 16.05), Pace(4, 100, 16.43), Pace(16, 100, 17.30)),
    ),
    Table(
        judges=("llama-3-8b-h100.yaml",),
        model="llama-3-8b",
        accelerator="H100",
        engine="TensorRT-LLM of 2024",
        note=f"{OLD_KERNELS}; whole batches, offline.",
        source=ARGONNE,
        rows=(
            Batch(1, 1024, 1024, 7729),
            Batch(16, 1024, 1024, 10157),
            Batch(32, 1024, 1024, 12493),
            Batch(64, 1024, 1024, 17483),
        ),
    ),
    Table(
        judges=("mistral-7b-h100.yaml",),
        model="mistral-7b",
        accelerator="H100",
        engine="TensorRT-LLM of 2024",
        note=f"{OLD_KERNELS}; whole batches, offline.",
        source=ARGONNE,
        rows=(
            Batch(1, 1024, 1024, 7313),
            Batch(16, 1024, 1024, 9701),
            Batch(32, 1024, 1024, 12101),
            Batch(64, 1024, 1024, 16847),
        ),
    ),
    Table(
        judges=("llama-3-8b-h200.yaml",),
        model="llama-3-8b",
        accelerator="H200",
        engine="vLLM of 2026, float16",
        note=(
            "On the straight line published for iterations with prompts of 256 to 4096 tokens, medians of"
            " twenty each. Iterations of decodes were timed too, but without CUDA graphs, so that the host"
            " shows."
        ),
        source=EB_VLLM,
        rows=(FirstToken(1024, 25.13), FirstToken(2048, 49.92), FirstToken(4096, 99.49)),
    ),
    Table(
        judges=("llama-3-8b-h200.yaml",),
        model="qwen-3-8b",
        accelerator="H200",
        engine="vLLM 0.19",
        note="Another model on the same constants. The median time between tokens; prompts come in between.",
        source=LLM_D,
        rows=(Pace(15, 576, 5.9),),
    ),
    Table(
        judges=("llama-3-8b-h200.yaml",),
        model="qwen-3-8b",
        accelerator="H200",
        engine="vLLM 0.18",
        note=(
            "Another model on the same constants, one request at a time. The first token includes the way"
            " through a gateway and the server."
        ),
        source=AICONFIGURATOR,
        rows=(Pace(1, 9015, 5.7), FirstToken(9000, 273)),
    ),
    Table(
        judges=("vicuna-13b-h100.yaml",),
        model="llama-2-7b",
        accelerator="H100",
        engine="TensorRT-LLM of 2024",
        note=f"{OLD_KERNELS}; whole batches, offline; a smaller model with the same attention.",
        source=ARGONNE,
        rows=(
            Batch(1, 1024, 1024, 7188),
            Batch(16, 1024, 1024, 11633),
            Batch(32, 1024, 1024, 15931),
        ),
    ),
    Table(
        judges=("llama-70b-h100-x4.yaml",),
        model="llama-70b",
        accelerator="H100",
        gpus=4,
        engine="TensorRT-LLM of 2024",
        note=f"{OLD_KERNELS}; whole batches, offline.",
        source=ARGONNE,
        rows=(
            Batch(1, 1024, 1024, 19741),
            Batch(16, 1024, 1024, 23582),
            Batch(32, 1024, 1024, 26715),
            Batch(64, 1024, 1024, 32015),
        ),
    ),
    Table(
        judges=("llama-70b-h100-x2.yaml",),
        model="llama-70b",
        accelerator="H100",
        gpus=2,
        engine="vLLM of 2023",
        note=f"{LANGUAGE_HOST}. The only measurement there is: a weak judge.",
        source=SPLITWISE,
        rows=(FirstToken(1024, 158.0), FirstToken(2048, 310.3), Pace(1, 576, 37.0), Pace(16, 576, 41.97)),
    ),
    Table(
        judges=("mistral-7b-a100.yaml",),
        model="mistral-7b",
        accelerator="A100",
        engine="vLLM 0.6",
        note="Ten iterations per step of the host, which hides its time as V1 does; a tenth of the interval.",
        source=LAMBDA,
        rows=(Pace(2, 500, 10.75), Pace(7, 150, 11.15)),
    ),
    Table(
        judges=("llama-3-8b-a100.yaml",),
        model="llama-3-8b",
        accelerator="A100",
        engine="vLLM 0.6",
        note="Ten iterations per step of the host, which hides its time as V1 does; a tenth of the interval.",
        source=LAMBDA,
        rows=(Pace(1, 700, 11.38), Pace(2, 400, 11.24), Pace(6, 170, 11.65)),
    ),
    Table(
        judges=("llama-3-8b-a100.yaml",),
        model="llama-3-8b",
        accelerator="A100-40GB",
        engine="vLLM 0.23",
        note="An A100 with 1555 GB/s; published as about 75 tokens per second.",
        source="https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on",
        rows=(Pace(1, 1088, 13.3),),
    ),
    Table(
        judges=("vicuna-13b-a100.yaml",),
        model="vicuna-13b",
        accelerator="A100",
        engine="LMDeploy 0.1",
        note="Rounded to whole milliseconds; first tokens include the request's way through the server.",
        source=LMDEPLOY,
        rows=(
            *(Pace(1, 192, 17), Pace(1, 2112, 19), Pace(16, 192, 19), Pace(16, 1152, 26)),
            *(Pace(32, 192, 21), Pace(32, 1152, 34), Pace(64, 192, 24)),
            *(FirstToken(128, 39), FirstToken(2048, 242)),
        ),
    ),
    Table(
        judges=("vicuna-13b-a100.yaml",),
        model="llama-2-7b",
        accelerator="A100",
        engine="TensorRT-LLM 0.5",
        note="A smaller model on the same constants.",
        source=TENSORRT,
        rows=(FirstToken(128, 16), FirstToken(2048, 133)),
    ),
    Table(
        judges=("llama-70b-a100-x4.yaml",),
        model="llama-70b",
        accelerator="A100",
        gpus=4,
        engine="LMDeploy 0.1",
        note="Rounded to whole milliseconds; first tokens include the request's way through the server.",
        source=LMDEPLOY,
        rows=(
            *(Pace(1, 192, 29), Pace(1, 2112, 31), Pace(16, 1152, 33)),
            *(Pace(32, 1152, 36), Pace(64, 1152, 43), FirstToken(128, 73), FirstToken(2048, 401)),
        ),
    ),
    Table(
        judges=("llama-70b-a100-x4.yaml",),
        model="llama-70b",
        accelerator="A100",
        gpus=4,
        engine="TensorRT-LLM 0.5",
        note="First tokens.",
        source=TENSORRT,
        rows=(FirstToken(128, 47), FirstToken(2048, 377)),
    ),
    Table(
        judges=("llama-70b-a100-x2.yaml",),
        model="llama-70b",
        accelerator="A100",
        gpus=2,
        engine="vLLM of 2023",
        note=f"{LANGUAGE_HOST}.",
        source=SPLITWISE,
        rows=(
            *(FirstToken(512, 196.9), FirstToken(1024, 377.1), FirstToken(2048, 688.1)),
            *(Pace(1, 576, 54.9), Pace(8, 576, 61.7), Pace(32, 576, 72.2)),
        ),
    ),
    Table(
        judges=("mistral-7b-a10.yaml", "llama-3-8b-a10.yaml", "vicuna-13b-a10-x2.yaml"),
        model="llama-2-7b",
        accelerator="A10",
        engine="LMDeploy of 2023",
        note="Another model on the same constants. Prompts, batches and PCIe are not judged: a weak judge.",
        source="https://github.com/InternLM/lmdeploy/issues/210",
        rows=(Pace(1, 160, 27),),
    ),
)
