"""Stands where `srun` is looked up and runs the real one without pyxis' options, which it writes down.

pyxis and enroot are in no package registry; a container here is the node itself.
"""

import json
import os
import shutil
import sys
from pathlib import Path

here = Path(sys.argv[0]).parent
options = [word for word in sys.argv[1:] if word.startswith("--container-")]
with (here / "options.jsonl").open("a") as file:
    file.write(json.dumps(options) + "\n")
elsewhere = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if Path(p) != here)
os.execv(str(shutil.which("srun", path=elsewhere)), ["srun", *(w for w in sys.argv[1:] if w not in options)])
