"""One column of validate's matrix, in a process of its own: compiles variants on one driver and executes them.

``python -m wgsl_attention.validation.worker BACKEND ADAPTER LIMITS`` answers each line of JSON on its standard input with
one on its standard output. The driver is chosen by the environment that the parent gives it. A crash or a hang in here ends
this process and nothing else.

Requests: ``{"op": "open"}``, ``{"op": "compile", "variant": RenderedVariant.as_json()}`` and ``{"op": "run", "run": a pickled
coverage.Run, "variants": [as for compile]}``.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pickle
import sys
import time
from typing import Any

import numpy as np

from ..algorithms.recipe import Recipe
from ..errors import ArgumentError, DeviceError, WgslAttentionError
from ..gpu import backends
from ..gpu.device import Device, Pipeline, open_device
from ..kernels.facts import Binding, RenderedVariant
from ..kernels.quirks import quirks_of
from ..planning.execute import run_plan
from ..planning.program import Program
from ..problem.problem import Problem
from ..problem.rotation import Rotation
from ..profile import PROFILES, builtin_profile
from ..reference.accuracy import Verdict, judge_rope
from ..rendering.kernel_text import rendered
from ..rendering.manifest import smallest_profile
from . import coverage as cases
from .coverage import Run
from .toolchains import LIMITS

DEFAULT = "webgpu-default"
EXAMPLE = {"head_dim": 44, "v_head_dim": 20}
"""Values of constants that a text is compiled with where no problem gives them: no tile's multiple."""


class TextDevice(Device):
    """A device that compiles the texts it was given in place of those that are checked in."""

    texts: dict[str, RenderedVariant]

    @classmethod
    def over(cls, opened: Device, texts: dict[str, RenderedVariant]) -> TextDevice:
        device = cls(opened.raw, opened.profile, unchecked=False)
        device.texts = texts
        return device

    def pipeline(self, rendered: RenderedVariant, *, unchecked: bool = False) -> Pipeline:
        text = self.texts.get(rendered.name, rendered)
        return super().pipeline(dataclasses.replace(text, values=rendered.values))


class Worker:
    """The devices of one driver, opened as variants need them: with ``limits`` "default" no larger than they have to be, with
    "adapter" all alike."""

    def __init__(self, backend: str, adapter: str, limits: str) -> None:
        self.backend = backend
        self.adapter = adapter
        self.limits = limits
        self.texts: dict[str, RenderedVariant] = {}
        self._devices: dict[tuple[str, frozenset[str]], TextDevice | None] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "open":
            return self.open()
        if request["op"] == "compile":
            return self.compile(self.take(request["variant"]))
        for data in request["variants"]:
            self.take(data)
        return self.run(pickle.loads(base64.b64decode(request["run"])))

    def take(self, data: dict[str, Any]) -> RenderedVariant:
        variant = RenderedVariant.from_json(data)
        self.texts[variant.name] = variant
        return variant

    def open(self) -> dict[str, Any]:
        """What the driver is; a software adapter is no answer where a GPU is asked for, nor OpenGL where Vulkan is."""
        try:
            found = backends.choose(self.backend, self.adapter or None)
        except DeviceError as error:
            finds_none = "no adapter:" in str(error) or "no adapter's" in str(error)
            return {"ok": False, "message": f"{self.backend} finds no adapter of it" if finds_none else str(error)}
        if not self.adapter and found.profile.software:
            return {"ok": False, "message": f"no GPU: the best adapter of {self.backend} is {found.description}"}
        if found.graphics.lower() not in ("vulkan", "metal", "d3d12", "null"):
            return {"ok": False, "message": f"{self.backend} has only {found.description}"}
        device = self.device(None)
        return {"ok": True, "device": found.description, "driver": device.profile.driver if device else ""}

    def device(self, variant: RenderedVariant | None) -> TextDevice | None:
        """A device with no more limits than the variant needs, else the adapter's own; None where neither holds it."""
        features = frozenset(variant.features) if variant else frozenset[str]()
        least = None
        if variant is not None and self.limits == "default":
            least = smallest_profile(dataclasses.replace(variant, features=()))
        names = list(PROFILES)
        if least is not None and names.index(least) < names.index(DEFAULT):
            least = DEFAULT
        for name in ((least,) if least else ()) + ("",):
            key = name, features if name else frozenset()
            if key not in self._devices:
                self._devices[key] = self._open(*key)
            device = self._devices[key]
            if device is not None and (variant is None or not variant.shortfalls(device.profile)):
                return device
        return None

    def _open(self, name: str, features: frozenset[str]) -> TextDevice | None:
        emulate = dataclasses.replace(builtin_profile(name), features=features) if name else None
        try:
            opened = open_device(self.backend, self.adapter or None, emulate=emulate, unchecked=False)
        except DeviceError:
            if not name:
                raise
            return None
        return TextDevice.over(opened, self.texts)

    def compile(self, variant: RenderedVariant) -> dict[str, Any]:
        """Makes the pipeline and dispatches it once over empty buffers, since some drivers compile only then."""
        start = time.perf_counter()
        device = self.device(variant)
        if device is None:
            return self.compile_module(variant)
        opened = time.perf_counter()
        try:
            pipeline = device.pipeline(variant.specialised(EXAMPLE))
        except DeviceError as error:
            return {"ok": False, "kind": "refused", "message": str(error)}
        made = time.perf_counter()
        groups = {b.binding: _stand_in(device, b) for b in variant.bindings}
        group = device.bind_group(pipeline, groups)
        device.run(lambda encoder: _dispatch(encoder, pipeline, group, (1, 1, 1)))
        device.read(next(groups[b.binding] for b in variant.bindings if b.access != "uniform"), 4)
        done = time.perf_counter()
        seconds = {"seconds": done - opened, "pipeline_seconds": made - opened, "device_seconds": opened - start}
        return {"ok": True, "kind": "pipeline", "limits": device.profile.name, **seconds}

    def compile_module(self, variant: RenderedVariant) -> dict[str, Any]:
        """The text alone, for a variant that this driver cannot hold as a pipeline, or gets wrong."""
        device = self.device(None)
        assert device is not None
        lacking = variant.shortfalls(device.profile)
        if set(variant.features) - device.profile.features:
            return {"ok": False, "kind": "needs", "message": "; ".join(lacking)}
        code = backends.shader_text(self.backend, variant.wgsl, variant.extensions)
        start = time.perf_counter()
        try:
            backends.create_module(self.backend, device.raw, code, variant.name)
        except backends.errors_of(self.backend) as error:
            message = str(backends.compile_error(self.backend, variant.name, code, error))
            return {"ok": False, "kind": "refused", "message": message}
        kind = "quirk" if quirks_of(variant, device.profile) else "module"
        return {"ok": True, "kind": kind, "message": "; ".join(lacking), "seconds": time.perf_counter() - start}

    def run(self, run: Run) -> dict[str, Any]:
        """Executes a recipe on its small problem and holds the gradients against float64."""
        texts = [self.texts.get(v.name) or rendered(v) for v in run.recipe.variants]
        # One device has to hold all of them.
        largest = max(texts, key=lambda t: (list(PROFILES).index(smallest_profile(t) or "workgroup-48k"), t.name))
        device = self.device(largest)
        if device is None or any(t.shortfalls(device.profile) for t in texts):
            device = self.device(None)
        assert device is not None
        lacking = [line for t in texts for line in t.shortfalls(device.profile)]
        if lacking:
            return {"ok": False, "kind": "needs", "message": "; ".join(lacking)}
        start = time.perf_counter()
        verdict = run_recipe(device, run.recipe)
        multiple = max(judgement.multiple for judgement in verdict.judgements)
        seconds = time.perf_counter() - start
        # JSON has no infinity
        return {"ok": verdict.ok, "kind": "run", "multiple": min(multiple, 1e30), "message": str(verdict), "seconds": seconds}


def run_recipe(device: Device, recipe: Recipe) -> Verdict:
    """Executes it on what ``coverage`` has for it; what it does not write stays NaN, which never passes."""
    task = recipe.problem
    if isinstance(task, Rotation):
        d_x, angles = cases.rotary(task)
        found = run_plan(Program(recipe, device), {"d_x": d_x}, angles)
        return Verdict(judgements=(judge_rope(recipe.variants[0].kernel, found["d_x"], d_x, angles.offset),))
    assert isinstance(task, Problem)
    given = cases.sample(task)
    return cases.right(task).judge(run_plan(Program(recipe, device), given.arrays, given.numbers, before=np.nan))


def _dispatch(encoder: Any, pipeline: Pipeline, group: Any, counts: tuple[int, int, int]) -> None:
    encoder.set_pipeline(pipeline.raw)
    encoder.set_bind_group(0, group)
    encoder.dispatch_workgroups(*counts)


def _stand_in(device: Device, binding: Binding) -> Any:
    """A buffer for a dispatch that is only to make the driver compile: sizes are 1, since with 0 a loop may never end."""
    if binding.access != "uniform":
        return device.zeros(256)
    if not binding.words:  # an array of vec4
        return device.uniform(np.zeros(4 * int(binding.type.rpartition(",")[2].strip(" >u")), np.uint32))
    words = np.zeros(64, np.uint32)
    words[: len(binding.words)] = [1 if word.type == "u32" else 0 for word in binding.words]
    return device.uniform(words)


def main(argv: list[str]) -> int:
    if len(argv) != 3 or argv[2] not in LIMITS:
        raise ArgumentError("arguments", argv, f"BACKEND ADAPTER {'|'.join(LIMITS)}")
    # Drivers print what they like; the answers keep a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(*argv)
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except WgslAttentionError as error:
            answer = {"ok": False, "kind": "error", "message": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Some drivers crash when they are torn down in the interpreter's order; everything has been said.
    sys.stderr.flush()
    os._exit(status)
