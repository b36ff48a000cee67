"""How to read the report."""

from .report import Report
from .section import Section

TITLE = "How to read it"
TEXT = """- **Compare with both baselines.** fp32 is IEEE arithmetic everywhere. tf32 needs no change of the model
  on Ampere or newer. A speed-up over fp32 that vanishes against tf32 belongs to TF32.
- **The same within 5%** is a result: arithmetic hardly limits that training. Small batches, small models and slow
  data loading keep the GPU waiting in any precision.
- **Cannot be told** is none. More processes narrow the interval.
- **An interval** holds for this GPU, this host and this software. It rests on processes, so more epochs do not
  narrow it.
- **†** marks runs that were throttled or shared their GPU. Measure them again. A card at its power limit is not
  marked: that belongs to what a precision costs on it.
- **Limits:** an idle GPU waits for the host or for data. Kernels that are neither convolution nor matmul are
  named by their family, such as normalisation or layout change; most of them gain from fewer bytes.
- **Memory:** 16 bits halve activations, not the optimizer's state. Autocast keeps fp32 weights. A model whose
  memory is mostly weights may save nothing.
- **Quality:** three seeds show large losses only. On made-up data it means nothing.
- **Gaps** are results too: *oom* ran out of memory, *diverged* did not learn, *unsupported* is a mode that this
  device lacks; *failed*, *timeout* and *killed* did not finish."""


def section(report: Report) -> Section:
    """Return advice that holds for every report."""
    section = Section(TITLE)
    section.say(TEXT)
    return section
