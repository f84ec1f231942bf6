"""Write all shipped profiles."""

import sys

from qlm.rct_estimator.profiles.file import profile_text
from scripts.shipped_profiles.profiles import FOLDER, WANTED, built_profile, file_name


def main() -> int:
    for wanted in WANTED:
        path = FOLDER / file_name(*wanted)
        path.write_text(profile_text(built_profile(*wanted)), "utf-8")
        print(f"written: {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
