"""`python -m onnxc`: the program."""
from . import main

main()
