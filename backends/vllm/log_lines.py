"""What a line of vLLM's log means while it starts: a step of the start, or why it will not. Pure.

Sources: the logs of vLLM 0.32 on a CPU; for GPUs its source (v1/core/kv_cache_utils.py, v1/worker/utils.py,
v1/worker/gpu_model_runner.py, compilation/backends.py, model_executor/model_loader/weight_utils.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from backends.vllm.options import FLAGS

_PREFIX = re.compile(
    r"^\s*(?:\([\w-]+(?: pid=\d+)?\)\s*)?(?:(?:INFO|WARNING|ERROR|DEBUG)\s+\d\d-\d\d [\d:.]+ \[[^\]]*\]\s?)?"
)
_BAR = re.compile(r"(\d+)/(\d+) \[")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the start. `done` of `total`, where it is counted; steps come in the order of `ORDER`."""

    name: str
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.done}/{self.total}" if self.total else self.name


ORDER = ("starting Python", "reading the config", "starting the engine", "loading weights", "weights are loaded",
         "compiling", "making room for the KV cache", "capturing graphs", "warming up", "opening the API",
         "asking it for a first token", "warming prompts")  # fmt: skip

_STEPS: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(r"version \d+\.\d+\S*\s*$|non-default args"), "reading the config"),
    (re.compile(r"Initializing a V\d LLM engine"), "starting the engine"),
    (re.compile(r"Starting to load model"), "loading weights"),
    (re.compile(r"Loading (?:safetensors|pt|np_cache)|Multi-thread loading"), "loading weights"),
    (re.compile(r"Loading weights took|Model loading took"), "weights are loaded"),
    (
        re.compile(r"Dynamo bytecode transform|Compiling a graph|Directly load|torch\.compile takes"),
        "compiling",
    ),
    (re.compile(r"Available KV cache memory|KV cache size: "), "making room for the KV cache"),
    (re.compile(r"Capturing CUDA graph|Capturing cudagraph"), "capturing graphs"),
    (re.compile(r"Graph capturing finished|init engine \("), "warming up"),
    (re.compile(r"Starting vLLM .*server on|Waiting for application startup"), "opening the API"),
]


def step(line: str) -> Step | None:
    """The step that a line tells of; None for most lines."""
    for pattern, name in _STEPS:
        if pattern.search(line):
            counted = _BAR.search(line)
            return Step(name, int(counted[1]), int(counted[2])) if counted else Step(name)
    return None


def share(reached: Step) -> float:
    """How much of the start is behind, for a bar: by steps, as they take very different times on each machine."""
    place = ORDER.index(reached.name) if reached.name in ORDER else 0
    part = reached.done / reached.total if reached.total else 0.0
    return min(1.0, (place + part) / len(ORDER))


_CAUSES: Sequence[tuple[re.Pattern[str], str]] = [
    (
        re.compile(r"(?:CUDA|HIP|XPU) out of memory|OutOfMemoryError|CUDA error: out of memory"),
        "the GPU's memory is not enough: lower gpu_memory_utilization, max_model_len or max_num_seqs, "
        "choose a quantization, or raise tensor_parallel_size",
    ),
    (
        re.compile(r"larger than the available KV cache memory.*?estimated maximum model length is (\d+)", re.S),
        "its KV cache has no room for one request of max_model_len: "
        "set max_model_len to {0} or less, or raise gpu_memory_utilization",
    ),
    (
        re.compile(r"larger than the available KV cache memory"),
        "its KV cache has no room for one request of max_model_len: lower it, or raise gpu_memory_utilization",
    ),
    (
        re.compile(r"No available memory for the cache blocks|not enough \w+ memory available to serve even"),
        "the weights leave no room for the KV cache: raise gpu_memory_utilization, choose a quantization, "
        "or raise tensor_parallel_size",
    ),
    (
        re.compile(
            r"Free memory on device (\S+) \(([\d.]+)/([\d.]+) GiB\) on startup is less than desired \w+ memory "
            r"utilization \(([\d.]+), ([\d.]+) GiB\)"
        ),
        "{0} has {1} of {2} GiB free, and gpu_memory_utilization = {3} asks for {4}: lower it, or end what else "
        "holds memory there",
    ),
    (
        re.compile(r"Not enough (?:available )?memory|Cannot allocate memory|DefaultCPUAllocator: can't allocate"),
        "the machine's memory is not enough: a smaller model, a quantization, or less for the KV cache",
    ),
    (
        re.compile(r"[Nn]o space left on device"),
        "a disk that it writes to is full: free some space, or set cache_dir to a larger one",
    ),
    (
        re.compile(r"Address already in use"),
        "its port is taken by another program: choose another one with port, or leave port out",
    ),
    (re.compile(r"unrecognized arguments: (.*)"), "it does not know {0}"),
    (re.compile(r"error: argument (--[\w-]+)\S*: (.*)"), "{0}: {1}"),
    (
        re.compile(r"max_model_len \((\d+)\) is greater than the derived max_model_len \(\w+=(\d+)"),
        "max_model_len = {0} is more than the {1} tokens that the model was made for: lower it",
    ),
    (
        re.compile(r"instantiate the backend tokenizer|Can't load tokenizer|tokenizer\.json.*No such file"),
        "the model folder has no tokenizer that it can read: copy the tokenizer's files into it, or set tokenizer",
    ),
    (
        re.compile(r"SafetensorError: (.*)|Error while deserializing header: (.*)"),
        "a file of weights is damaged or not whole ({0}): copy or download the model again",
    ),
    (
        re.compile(r"ensure the presence of a 'config\.json'|does not appear to have a file named config\.json"),
        "the model folder has no config.json: model must name a folder of Hugging Face's layout",
    ),
    (
        re.compile(r"LocalEntryNotFoundError|Cannot find an appropriate cached snapshot|couldn't connect to '?https"),
        "the model is not in the cache and the hub is not asked: set model to a folder, fill cache_dir, "
        "or let it ask the hub (HF_HUB_OFFLINE=0 in env)",
    ),
    (
        re.compile(r"Repo id must be in the form|HFValidationError"),
        "there is no such model folder, and its name is not one of the hub's",
    ),
    (
        re.compile(r"(?:401|403) Client Error|GatedRepoError|gated repo"),
        "the hub does not give this model without leave: ask for access, and set HF_TOKEN in env",
    ),
    (
        re.compile(r"trust_remote_code=True"),
        "the model brings code of its own: set trust_remote_code = true if you trust it",
    ),
    (
        re.compile(r"Model architectures? \[?'?([^'\]]+)'?\]? (?:are|is) not supported"),
        "this vLLM has no {0}: a newer version may",
    ),
    (
        re.compile(r"[Bb]float16 is only supported on GPUs with compute capability"),
        'this GPU has no bfloat16: set dtype = "float16"',
    ),
    (
        re.compile(r"torch\.dtype\(?\w*\)? is not supported for quantization method (\w+)"),
        "quantization = {0} does not go with this dtype: set another dtype",
    ),
    (re.compile(r"invalid tool call parser: (\S+)"), "it has no tool_call_parser {0}"),
    (re.compile(r"invalid reasoning parser: (\S+)"), "it has no reasoning_parser {0}"),
    (
        re.compile(r"No module named ['\"]?vllm\b"),
        "vLLM is not installed for the Python in command: pip install vllm there, or set command to another Python",
    ),
    (
        re.compile(r"World size \((\d+)\) is larger than the number of available GPUs|not enough GPUs|"
                   r"tensor parallel size.*exceeds|The number of required GPUs exceeds"),
        "there are fewer GPUs than tensor_parallel_size times pipeline_parallel_size asks for",
    ),
    (
        re.compile(r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver"),
        "it finds no GPU: look at the driver (nvidia-smi) and, in a container, at how GPUs are given to it",
    ),
    (
        re.compile(r"PermissionError: \[Errno 13\] Permission denied: '([^']+)'"),
        "it may not write {0}: give it leave, or set cache_dir to a folder that it may write",
    ),
]  # fmt: skip
"""Cause → what to change. The first that is found counts: what comes after a cause follows from it."""

_WRONG_INPUT = re.compile(r"^\s+(Input should be .*?) \[type=")  # pydantic names the field in the line before
_VALUE_ERROR = re.compile(r"Value error, (.*?)(?: \[type=|$)")
_ERROR = re.compile(r"^(?:[\w]+\.)*(?:[A-Z]\w*(?:Error|Exception)): (.+)$")
_FOLLOWS = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|See (?:stack trace|root cause)"
    r"|validation errors? for|Failed core proc"
)
_MAX_CHARS = 400


class StartLog:
    """The log of one start, line by line: the steps reached, and the cause if it fails."""

    def __init__(self) -> None:
        self.reached = Step(ORDER[0])
        self._known: str | None = None
        self._told: str | None = None
        """An error in the engine's own words."""
        self._before = ""

    def hear(self, line: str) -> Step | None:
        """The step that this line brings it to, if it is a new one."""
        text = _PREFIX.sub("", line)
        if self._known is None:
            self._known = cause(text)
        # The first is the root: each process then tells the error of the one below it.
        if self._told is None:
            self._told = own_words(text, self._before)
        self._before = text.strip()
        found = step(text)
        if found is None or found == self.reached or ORDER.index(found.name) < ORDER.index(self.reached.name):
            return None
        self.reached = found
        return found

    @property
    def cause(self) -> str:
        """One sentence, empty when nothing was said."""
        return self._known or self._told or ""


def cause(line: str) -> str | None:
    """What to change, when the line is one of the causes that are known."""
    for pattern, advice in _CAUSES:
        if found := pattern.search(line):
            return advice.format(*(group or "" for group in found.groups()))
    return None


def own_words(line: str, before: str = "") -> str | None:
    """The text of an exception, in vLLM's words, with our keys instead of its flags. `before`: the line before it."""
    if found := _WRONG_INPUT.search(line):
        return f"{before}: {found[1]}"
    found = _VALUE_ERROR.search(line) or _ERROR.search(line.strip())
    if found is None or _FOLLOWS.search(line):
        return None
    text = found[1].strip()
    for key, flag in FLAGS.items():
        text = text.replace(flag.name + " ", key + " ")
    return text[:_MAX_CHARS]
