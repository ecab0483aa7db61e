"""The last module that the process imports from which ranks are forked (worlds.py): a fork has to copy what its garbage
collector looks at."""

import gc

gc.freeze()
