"""Runs when a kernel starts (IPython's startup folder), before the first cell of its notebook.

It loads the packages on the CPU, then waits for its turn on the GPU. So a process that waits has
loaded what it needs, and no two timed processes hold a CUDA context at a time. The turn ends with
the process, because the file stays locked as long as that lives.
"""


def _wait_for_the_turn():
    import fcntl
    import os
    import time

    path = os.environ.get("ATTENTION_TURN")
    if not path:
        return
    entered = time.time()
    kept = os.environ.get("TORCH_WARM_POOL")
    os.environ["TORCH_WARM_POOL"] = "0"  # the pool asks CUDA for its devices
    import pandas  # noqa: F401
    import pydantic  # noqa: F401
    import torch
    from torch import _dynamo  # noqa: F401

    try:
        import sympy  # noqa: F401
        import torch._functorch.aot_autograd  # noqa: F401
        import torch._inductor.compile_fx  # noqa: F401
    except Exception:  # the run itself says what is missing
        pass
    os.environ.pop("TORCH_WARM_POOL")
    if kept is not None:
        os.environ["TORCH_WARM_POOL"] = kept
    early = torch.cuda.is_initialized()  # then a process would have been on the GPU too early
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    began = time.time()
    fcntl.flock(file, fcntl.LOCK_EX)
    # the GPU frees the memory of the process before this one
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    try:
        import pynvml

        pynvml.nvmlInit()
        if number.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(number))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(number)
        until = time.time() + 5
        while pynvml.nvmlDeviceGetMemoryInfo(handle).used > 2**30 and time.time() < until:
            time.sleep(0.05)
        pynvml.nvmlShutdown()
    except Exception:
        time.sleep(0.3)
    finally:
        try:  # as it does where nothing is loaded before
            from torch._inductor import async_compile

            warm = getattr(async_compile, "maybe_warm_pool", async_compile.AsyncCompile.warm_pool)
            warm()
        except Exception:
            pass
        waited = f"{os.getpid()} loaded in {began - entered:.1f} s, waited {time.time() - began:.1f} s"
        with open(f"{path}.log", "a", encoding="utf-8") as log:
            log.write(f"{time.time():.1f} {waited}{', CUDA WAS THERE BEFORE' if early else ''}\n")


_wait_for_the_turn()
del _wait_for_the_turn
