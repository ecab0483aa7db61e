"""The last module that the process imports from which ranks are forked (worlds.py): a fork has to copy what its garbage
collector looks at."""

import atexit
import gc

gc.freeze()
atexit.register(gc.unfreeze)  # of that process: ranks end without exit handlers
