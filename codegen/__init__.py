"""Specialised WGSL kernels for the backward pass of attention: generated from templates, proven on real compilers, chosen per call.

``attention_backward`` takes NumPy arrays; ``plan`` records into a program of your own; ``wgsl_attention.generated`` holds
the checked-in kernels. Importing this needs neither a GPU nor Jinja2.
"""

from __future__ import annotations

from .algorithms.choice import Choice, register_kernel
from .arrays import Gradients, attention_backward, rope_backward
from .errors import (
    ArgumentError,
    DeviceError,
    GpuBufferError,
    ManifestError,
    TuningError,
    UnservedProblemError,
    VariantError,
    WgslAttentionError,
)
from .gpu.device import Device, adapters, default_device, open_device
from .kernels.facts import RenderedVariant
from .kernels.variant import Variant
from .planning.plans import Plan, plan, prepare
from .planning.rope import record_rope_backward
from .problem.documents import doc_start_from_cu_seqlens, doc_start_from_lengths, doc_start_from_segment_ids
from .problem.mask import Mask
from .problem.problem import Problem
from .problem.strides import Strides
from .profile import PROFILES, DeviceProfile, Limits
from .rendering.renderer import render
from .selection.ranking import Selection, select
from .tuning.journal import Measurement
from .tuning.tuner import tune

__all__ = [
    "PROFILES",
    "ArgumentError",
    "Choice",
    "Device",
    "DeviceError",
    "DeviceProfile",
    "GpuBufferError",
    "Gradients",
    "Limits",
    "ManifestError",
    "Mask",
    "Measurement",
    "Plan",
    "Problem",
    "RenderedVariant",
    "Selection",
    "Strides",
    "TuningError",
    "UnservedProblemError",
    "Variant",
    "VariantError",
    "WgslAttentionError",
    "adapters",
    "attention_backward",
    "default_device",
    "doc_start_from_cu_seqlens",
    "doc_start_from_lengths",
    "doc_start_from_segment_ids",
    "open_device",
    "plan",
    "prepare",
    "record_rope_backward",
    "register_kernel",
    "render",
    "rope_backward",
    "select",
    "tune",
]

__version__ = "0.1.0"
