r"""Configuration: what a model is made of, what it is trained on, how it is sampled.

A configuration is a YAML file, or one of the presets bundled with the package. It is read whole,
checked whole, and does not change afterwards. A file need only say what differs from a preset:

.. code-block:: yaml

    extends: era5-1.5deg
    autoencoder:
      latent_channels: 32

Mappings are merged; anything else, lists too, replaces what the preset says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from .errors import ConfigError, nearest
from .sections import Config, Problems, Section, show

__all__ = ["Config", "load_config", "parse_config", "presets"]


def presets() -> list[str]:
    r"""The names of the bundled presets."""
    files = resources.files("appa.presets").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def load_config(name_or_path: str | Path) -> Config:
    r"""Reads and checks a configuration.

    Arguments:
        name_or_path: A preset, a YAML file, or a folder that holds a `config.yaml`.

    Example:
        >>> load_config("era5-0.25deg").latent_shape
        (128, 23, 47)
    """
    name, path = str(name_or_path), Path(name_or_path).expanduser()
    if name in presets():
        return parse_config(_read_preset(name), name)
    if path.is_dir():
        path = path / "config.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"no file {path}, and no preset of that name{_meant(name, presets())} "
            f"(presets: {', '.join(presets())})"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    return parse_config(_read(text, str(path)), str(path))


def parse_config(values: Any, origin: str = "the configuration") -> Config:
    r"""Checks a configuration given as nested mappings; `origin` names it in messages."""
    values = _extend(values, origin)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        lines = "\n".join(f"  {line}" for line in _describe(error))
        raise ConfigError(f"{origin} is not a valid configuration:\n{lines}") from None


class _Loader(yaml.SafeLoader):
    r"""Refuses a key given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    told = f"found the key {key.value!r} twice"
                    raise yaml.MarkedYAMLError(problem=told, problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(text: str, origin: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin} is not YAML: {error}") from None


def _read_preset(name: str) -> dict[str, Any]:
    file = resources.files("appa.presets") / f"{name}.yaml"
    return _read(file.read_text(encoding="utf-8"), name)


def _extend(values: Any, origin: str) -> dict[str, Any]:
    r"""The values merged over those of the preset they extend, if any."""
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}: found {show(values)}, expected keys such as 'data:'")
    if "extends" not in values:
        return values
    values = dict(values)
    name = values.pop("extends")
    if name not in presets():
        hint = nearest(str(name), presets())
        raise ConfigError(f"{origin}: extends: found {show(name)}, expected a preset{hint}")
    return _merge(_extend(_read_preset(name), name), values)


def _merge(base: Any, values: Any) -> Any:
    if isinstance(base, dict) and isinstance(values, dict):
        return base | {k: _merge(base.get(k), v) for k, v in values.items()}
    return values


def _sections(model: type[Section], path: str = "") -> Iterator[tuple[str, list[str]]]:
    yield path, list(model.model_fields)
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _sections(field.annotation, f"{path}.{name}".lstrip("."))


def _meant(word: str, known: Iterable[str]) -> str:
    hint = nearest(word, known)
    return hint if "did you mean" in hint else ""


def _describe(error: ValidationError) -> list[str]:
    r"""One line a problem: where, what was found, what is expected."""
    sections = dict(_sections(Config))
    lines, meant = [], set()
    for e in sorted(error.errors(), key=lambda e: e["type"] == "missing"):
        path = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in e["loc"]).lstrip(".")
        cause = e.get("ctx", {}).get("error")
        if e["type"] == "extra_forbidden":
            section, _, key = path.rpartition(".")
            homes = [s or "the top" for s, keys in sections.items() if key in keys]
            hint = nearest(key, sections.get(section, []))
            if close := re.search("did you mean '(.*)'", hint):
                meant.add(f"{section}.{close[1]}".lstrip("."))
            elif homes:
                hint = f"; it belongs under {' or '.join(homes)}"
            lines.append(f"{path}: unknown key{hint}")
        elif e["type"] == "missing":
            # not where a misspelt key was already taken for it
            if path not in meant:
                lines.append(f"{path}: missing; give it, or extend a preset")
        elif isinstance(cause, Problems):
            for below, told in cause.problems:
                lines.append(f"{path}{'' if below.startswith('[') else '.'}{below}: {told}")
        elif cause is not None:
            lines.append(f"{path}: {cause}")
        else:
            expected = e["msg"].replace("Input should be", "expected")
            hint = ""
            if e["type"] == "model_type":
                expected = f"expected the keys {', '.join(sections[path])}"
            if e["type"] == "literal_error":
                hint = _meant(str(e["input"]), re.findall("'([^']*)'", expected))
            lines.append(f"{path}: found {show(e['input'])}, {expected}{hint}")
    return lines
