"""The environment variables that the study reads or sets. No other module writes their names."""

import os
from pathlib import Path

# run_all.py sets these for the processes that it starts, which drop them once it is gone.
RUNNER_ENV = "MIXED_PRECISION_RUNNER"  # the process id of run_all.py
FOLDER_ENV = "MIXED_PRECISION_FOLDER"  # the output folder
PROGRESS_ENV = "MIXED_PRECISION_PROGRESS"  # a file in which a run says how far it is
HASH_ENV = "MIXED_PRECISION_CODE_HASH"  # the hash of the code when the run began
NOTEBOOK_ENV = "MIXED_PRECISION_NOTEBOOK"  # the path of the run's notebook
ORDER_ENV = "MIXED_PRECISION_ORDER"  # the run's place in its comparison, from 0
STUDY_ENV = "MIXED_PRECISION_ABOUT"  # what the study says of itself, as JSON
PLANNED_ENV = "MIXED_PRECISION_PLANNED"  # the planned parameters, as JSON
OF_A_RUN = (
    RUNNER_ENV,
    FOLDER_ENV,
    PROGRESS_ENV,
    HASH_ENV,
    NOTEBOOK_ENV,
    ORDER_ENV,
    STUDY_ENV,
    PLANNED_ENV,
)

# A person may set these; run_all.py sets the commit, too.
COMMIT_ENV = "MIXED_PRECISION_COMMIT"  # the commit of the code, where git cannot tell
DATA_ENV = "MIXED_PRECISION_DATA"  # the data folder of a Ray node that shares no file system

# Other programs read these. What a person has set of them stays as it is.
GPUS_ENV = "CUDA_VISIBLE_DEVICES"
THREADS_ENV = "OMP_NUM_THREADS"
COMPILED_ENV = "TORCHINDUCTOR_CACHE_DIR"  # where torch.compile keeps what it has compiled
BLOCKING_ENV = "CUDA_LAUNCH_BLOCKING"  # "1": each kernel ends before the next begins
CUPTI_ENV = "TEARDOWN_CUPTI"  # "1": the profiler lets go of the GPU when it ends
IMPORTS_ENV = "PYTHONPATH"
KERNELS_ENV = "JUPYTER_PATH"
HOSTED = ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE")  # set in hosted notebooks only

# run_all.py sets these for the processes that it starts, or takes them away.
OF_CHILDREN = {
    "PYTHONUNBUFFERED": "1",
    # with it the kernel would lose the suite, because that is its current folder
    "PYTHONSAFEPATH": None,
    "TQDM_DISABLE": "1",
    "MPLBACKEND": None,
}
OF_A_REPORT = {"PYTHONWARNINGS": "ignore"}  # because a page is shared
# Ray would else try for a quarter of an hour to reach a cluster that is not there.
OF_RAY = {
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_py_gcs_connect_timeout_s": "5",
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
}


def with_folder(folder: Path, variable: str) -> str:
    """Return a variable's list of folders with this one before it."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get(variable))))
