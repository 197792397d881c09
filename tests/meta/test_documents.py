"""README, example config and code say the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from proxy import errors, pipeline
from proxy.config import Config, Telemetry
from proxy.config_load import load
from proxy.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLE = (ROOT / "config.example.toml").read_text()


def test_the_example_config_loads_and_shows_the_defaults() -> None:
    config = load(EXAMPLE, {}, embedded=True)
    plain = Config()
    for section in ("server", "admin", "context", "cap", "fuse", "telemetry", "log"):
        assert getattr(config, section) == getattr(plain, section)


def test_the_example_config_with_every_mark_taken_away_loads_too() -> None:
    text = re.sub(r"^#: ?", "", EXAMPLE, flags=re.MULTILINE)
    text = text.replace('backend = "vllm"', 'backend = "openai"').replace("/models/Qwen3-0.6B", str(ROOT))
    text = text.replace('"cert.pem"', '"c"').replace('auth = "client"', 'auth = "config"')
    names = ("CHATFUSE_ADMIN_TOKEN", "WEB_KEY", "OPENAI_API_KEY", "HF_TOKEN")
    config = load(text, dict.fromkeys(names, "a secret"), embedded=True)
    assert config.callers[0].name == "web"


def keys_of(model: type) -> set[str]:
    """Every key of a section and of the sections in it."""
    found: set[str] = set()
    for name, field in getattr(model, "model_fields", {}).items():
        found.add(name)
        pending = [field.annotation]
        while pending:
            kind = pending.pop()
            pending += list(getattr(kind, "__args__", ()))
            if isinstance(kind, type) and hasattr(kind, "model_fields"):
                found |= keys_of(kind)
    return found


def test_the_example_config_names_every_key_that_there_is() -> None:
    missing = {key for key in keys_of(Config) if not re.search(rf"\b{key}\b", EXAMPLE)}
    assert missing == set()


def test_the_readmes_config_loads() -> None:
    text = re.search(r"```toml\n(.*?)```", README, re.DOTALL)
    assert text is not None
    config = load(text.group(1), {}, embedded=False)
    assert config.models[0].window == 128_000


def test_the_readmes_table_of_stages_is_the_pipeline() -> None:
    class NoPorts:
        keys = catalog = book = None

    tables = [pipeline.admission(Config(), NoPorts()), pipeline.fitting(NoPorts())]  # type: ignore[arg-type]
    stages = [stage.name for table in tables for stage in table.stages]
    section = README.split("## What happens to a request")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == stages


def test_the_readme_names_every_metric_and_every_error_code() -> None:
    families = [family.name for family in Metrics(Telemetry()).registry.collect()]
    assert [name for name in families if name not in README] == []
    classes = list(errors.ProxyError.__subclasses__())
    for kind in classes:
        classes.extend(kind.__subclasses__())
    codes = {kind.code for kind in classes}
    unused = {"internal_error", "overloaded", "no_backend"}
    assert {code for code in codes if code not in README} <= unused


def test_the_dependencies_that_the_extras_pull_in_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "deploy/constraints.txt").read_text().splitlines()
        if "==" in line
    }
    names = {re.split(r"[\[<>=]", item)[0].lower().replace("_", "-") for item in wanted} - {"chatfuse"}
    assert names <= pinned


def test_no_file_is_longer_than_400_lines_or_named_for_nothing() -> None:
    files = [path for folder in ("proxy", "backends") for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in files if len(path.read_text().splitlines()) > 400] == []
    assert [path for path in files if re.fullmatch(r"utils?|helpers?|common|misc|managers?", path.stem)] == []
