"""Prints where an installed PyTorch lies, without importing it: importing takes seconds and may need a GPU's libraries."""

import importlib.util
import os

spec = importlib.util.find_spec("torch")
if spec is not None and spec.origin is not None:
    print(os.path.dirname(os.path.abspath(spec.origin)))
