"""Real networks with inputs made from recipes, as tests/models.py has them."""
import fnmatch
import json
import os
import pathlib
import subprocess
import sys


def cases(suite, tools, work, pattern, make):
    raise NotImplementedError
