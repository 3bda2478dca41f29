"""The deliberately broken templates in broken/: each is an edit of one of the package's templates, and says what catches it."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path

import jinja2
from wgsl_attention.kernels.facts import RenderedVariant
from wgsl_attention.rendering.renderer import environment, render, render_text
from wgsl_attention.selection import catalog

FOLDER = Path(__file__).parents[1] / "broken"


@dataclass(frozen=True, kw_only=True)
class Breakage:
    """``old`` becomes ``new`` in ``template``. ``static`` is the rule that sees it (empty where it is not for the static
    checks) and ``also`` what else does, ``refused_by`` the compilers that refuse it, ``wrong`` says that its gradients are."""

    name: str
    what: str
    variant: str
    template: str
    old: str
    new: str
    refused_by: list[str]
    static: str = ""
    also: tuple[str, ...] = ()
    wrong: bool = False

    def render(self) -> RenderedVariant:
        """The variant's text from the broken template, with the facts of the right one."""
        right = environment()
        assert right.loader is not None
        source, _, _ = right.loader.get_source(right, self.template)
        assert self.old in source, f"{self.name}: templates/{self.template} no longer holds {self.old!r}"
        broken = right.overlay(
            loader=jinja2.ChoiceLoader([jinja2.DictLoader({self.template: source.replace(self.old, self.new)}), right.loader]),
            cache_size=0,
        )
        variant = catalog.checked_in()[self.variant]
        rendered = dataclasses.replace(render(variant), wgsl=render_text(variant, broken))
        assert rendered.wgsl != render(variant).wgsl, f"{self.name} changes nothing in {self.variant}"
        return rendered


BREAKAGES = {
    path.stem: Breakage(name=path.stem, **tomllib.loads(path.read_text(encoding="utf-8")))
    for path in sorted(FOLDER.glob("*.toml"))
}
