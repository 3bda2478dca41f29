"""Specialised WGSL kernels for the backward pass of attention: generated from templates, proven on real compilers, chosen per call.

``attention_backward`` takes NumPy arrays; ``plan`` records into a program of your own; ``wgsl_attention.generated`` holds
the checked-in kernels. Importing this needs neither a GPU nor Jinja2.
"""

from __future__ import annotations

from .arrays import Gradients, attention_backward, rope_backward
from .choices import Choice, register_kernel
from .device import Device, adapters, default_device, open_device
from .documents import doc_start_from_cu_seqlens, doc_start_from_lengths, doc_start_from_segment_ids
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
from .mask import Mask
from .plan import Plan, plan, prepare
from .problem import Problem
from .profile import PROFILES, DeviceProfile, Limits
from .render import render
from .rope import record_rope_backward
from .select import Selection, select
from .strides import Strides
from .tiles import TiledChoice
from .tune_log import Measurement
from .tuner import tune
from .variant import RenderedVariant, Variant

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
    "TiledChoice",
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
