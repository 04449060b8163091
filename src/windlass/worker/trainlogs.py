"""Parses progress from one line of a training log, in the formats of common training code.

Precision is preferred to recall: ambiguous lines are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from windlass.worker.values import json_safe

Progress = dict[str, Any]

LINE_CHARS: Final = 2048
"""Maximum length of a line that is parsed, in characters."""
INTEGER_LIMIT: Final = 10**15
_METRICS = 16

_INT = r"(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})"
_NUM = r"[-+]?(?:(?:\d{1,15}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,3})?|nan|inf(?:inity)?)"
_ENDS = r"(?=$|[\s,;|()\[\]{}'\"]|\.(?:\s|$))"
_FLAGS = re.ASCII | re.IGNORECASE


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, _FLAGS)


_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_HINTS = (b"loss", b"epoch", b"step", b"iter", b"it/s", b"s/it", b"train", b"%|", b"]\t")
# Ray adds the process to the beginning of each line of a worker, and to its end how many workers have printed it.
_RAY_WORKER = _compile(r"\s*\((?:[\w.<>-]{1,80} )?pid=\d{1,9}(?:, ip=[\da-f.:]{2,45})?\)\s")
_RAY_REPEATED = _compile(r"\s\[repeated \d{1,9}x across cluster\].*")

# tqdm: `desc:  45%|####5     | 450/1000 [00:12<00:15, 36.1it/s, loss=0.5]` and `450it [00:12, 36.1it/s]`
_BAR = _compile(r"[^|]*\|\s*(\d{1,15})/(\d{1,15})\s+\[[^,\]]*(?:,\s*(.*))?")
_BAR_PERCENT = _compile(r"\s*\d{1,3}$")
_OPEN_BAR = _compile(r"(?:(.{0,80}?):\s+)?(\d{1,15})it\s\[[\d:]+,\s*(.*)")
_BAR_SPEED = _compile(r"([\d.]{1,20}|\?)\s?(?:([a-z]{1,12})/s|s/([a-z]{1,12}))(?![a-z])")
_BAR_TRAINS = _compile(r"train|epoch|step|iter|batch|loss|\bfit")
_BAR_EVALUATES = _compile(r"valid|\bval\b|test|eval|sanity|predict|infer")
_BAR_PREPARES = _compile(
    r"\b(?:download|load|fetch|extract|map\b|tokeni|filter|process|pre-?process|prepar|cach|build|import|copy|upload|sav"
    r"|shard|generat|writ|read|scan|resolv|verif|index|pack|group|concat|convert)"
)
_BAR_EPOCHS = _compile(r"(?:training\s+)?epochs?")
_YOLO_COLUMNS = _compile(r"(\d{1,6})/\d{1,6}\s+[\d.]{1,10}[GM]?\s+[\d.]")
_STEP_UNITS = ("it", "step", "steps", "batch", "batches", "iter", "iters")
_SAMPLE_UNITS = ("sample", "samples", "img", "imgs", "image", "images")

# Lightning's rich bar: `Epoch 4/9  ━━━━━━━━ 232/291 0:00:33 • 0:00:09 7.00it/s train_loss: 0.398`
_RICH = _compile(r"Epoch (\d{1,9})(?:/\d{1,9})?\s+[━╸╺─\s-]+\s(\d{1,15})/(\d{1,15})\s+\d+:\d\d:\d\d\s(.*)")
# Keras: `100/500 ━━━━━━━━ 3s 12ms/step - loss: 0.5`, `100/500 [=====>....] - ETA: 3s - loss: 0.5` and, with verbose=2,
# `500/500 - 3s - 6ms/step - loss: 0.5`
_KERAS = _compile(r"\s*(\d{1,15})/(\d{1,15}|Unknown)\s+(?:[━─]+\s|\[[=>.]+\]\s|-\s\d{1,9}s\s-\s)(.*\bloss\b.*)")
# Ultralytics: `      3/100      2.1G     1.234     2.345     12        640: 45% ━━━━━─────── 45/100 8.5it/s 5.3s<6.5s`
_ULTRALYTICS = _compile(
    r"\s*(\d{1,6})/\d{1,6}\s+[\d.]{1,10}[GM]?\s[\s\d.]{1,200}:\s+\d{1,3}%\s[━╸─]{1,80}\s(\d{1,15})/(\d{1,15})\s(.*)"
)
# XGBoost: `[3]\ttrain-rmse:0.50\teval-rmse:0.61`, prefixed with `[12:00:00] ` if there are several workers; LightGBM:
# `[3]\tvalid_0's l2: 0.25`
_BOOSTED = _compile(rf"(?:\[\d\d:\d\d:\d\d\]\s)?\[(\d{{1,9}})\]\t([a-z][^\t]{{0,80}}:\s?{_NUM}(?:\s.*)?)$")
# `Epoch: [3]  [ 40/500]`, `Epoch: [3][40/500]`, `Epoch(train) [3][40/500]`, `epoch 003:  40 / 500 loss=..`
_BRACKETS = _compile(
    r"\bepoch(?:\(train\))?:?\s*(?:\[\s*(\d{1,9})(?:/\d{1,9})?\]\s*\[\s*(\d{1,15})/\s*(\d{1,15})\]"
    r"|(\d{1,9}):\s+(\d{1,15}) / (\d{1,15}) )"
)
# `Train Epoch: 1 [640/60000 (1%)]` counts samples; `Train: 3 [  40/500 (  8%)]` counts steps.
_TRAIN_SAMPLES = _compile(r"\btrain epoch:?\s+(\d{1,9})\s+\[\s*\d{1,15}/\d{1,15}\s+\(\s*([\d.]{1,6})%\)\]")
_TRAIN_STEPS = _compile(r"\btrain:\s+(\d{1,9})\s+\[\s*(\d{1,15})/(\d{1,15})\s+\(\s*\d{1,3}%\)\]")

_EPOCH = _compile(
    r"\bepoch\b\s{0,9}[:=#]?\s{0,9}[\[(]?\s{0,9}(\d{1,9}(?:\.\d{1,9})?)(?![\w.]\w)(?:\s{0,9}(?:/|of)\s{0,9}\d{1,9})?"
)
_STEP = _compile(
    r"(?<![\w])(global[_ ]?step|train[_ ]?step|steps?|iter(?:ation)?s?|batch|update|it)\b\s{0,19}[:=#]?\s{0,19}[\[(]?"
    rf"\s{{0,19}}({_INT})(?![\w.]\w)(?:\s{{0,19}}(?:/|\bof\b)\s{{0,19}}({_INT}))?"
)
_LOSS = _compile(rf"loss(?:_step|_epoch)?\s{{0,9}}[:=]?\s{{0,9}}(?:is\s)?(?:tensor\()?\s{{0,9}}({_NUM}){_ENDS}")
_WORD_BEFORE = _compile(r"(?:^|[^a-z_])([a-z][a-z_]{0,15})[ _/-]$")
_LOSS_WORDS = _compile(
    r"train|training|lm|mlm|total|avg|average|mean|running|batch|step|epoch|the|ce|current|cur|smooth|smoothed|s|sec"
)
# these words also name settings, so they only count next to a loss or a total
_WEAK_STEPS = ("steps", "batch", "it", "update")

_RATE = _compile(r"(?<![\w.])([\d.]{1,20})\s?(?:it|steps?|iters?|batch(?:es)?)/s(?:ec)?\b")
_SECONDS_PER_STEP = _compile(r"(?<![\w.])([\d.]{1,20})\s?(m?s)/(?:it|step|iter|batch)\b")
_MS_PER_ITERATION = _compile(r"elapsed time per iteration \(ms\):\s+([\d.]{1,20})")
_SAMPLES = _compile(r"(?<![\w.])([\d,.]{1,20})\s?(?:samples?|images?|imgs?)/s(?:ec)?\b(?!\s?[:=])")
_SAMPLES_NAMED = _compile(r"\b(?:samples?|images?)(?:/s(?:ec)?|_per_second)\s?[:=]\s?([\d,.]{1,20})")
_PAIR = _compile(
    rf"(?<![\w@./])([a-z][\w@./-]{{0,39}})['\"]?\s?[:=]\s{{0,9}}(['\"]?)({_NUM})\2(?=$|[\s,;|()\[\]{{}}]|\.(?:\s|$))"
)
_NO_METRICS = _compile(
    r"steps?|global_step|train_step|iter|iteration|batch|epoch|loss|v_num|rank|gpu|eta|total|update|it"
    r"|(?:samples?|images?)(?:/s|/sec|_per_second)"
)

_DICT = _compile(r"\s*\{\s*['\"].*\}\s*$")
_DICT_COMPANIONS = ("epoch", "step", "global_step", "iter", "learning_rate", "grad_norm", "lr")
_TRAINING_LOSSES = (
    "loss",
    "train_loss",
    "train/loss",
    "training_loss",
    "loss_step",
    "train_loss_step",
    "total_loss",
    "lm_loss",
)

_BRACKETED = _compile(r"\[(?![^\]]{0,80}(?:epoch|step|iter|batch))[^\]]{0,80}\]")
_PREFIX_WORD = _compile(r"(?<![\w.])([a-z_][\w./]{0,60})(\s{0,4}[:|>-])?")
_PREFIX_CHARS = 200
_PREFIX_ALLOWED = _compile(
    r"info|debug|train|training|trainer|rank|gpu|worker|node|local_rank|proc|process|main|root|global"
    r"|mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|am|pm|utc"
)
_PREFIX_DENIED = _compile(
    r"best|last|final|expected|resum(?:e|ed|ing)|warn|warning|error|fatal|critical|note|usage|example|config|args"
    r"|arguments|options|settings|hyperparameters|params|parameters|val|valid|validation|eval|test|early|earlystopping"
    r"|checkpoint|saved|loaded|default"
)
_DECORATION = _compile(r"[\s=*#:.|>\[\]()-]*")
# `: accuracy=0.91, lr: 1e-3`: names with values that have a decimal point, and nothing else
_MEASURES = _compile(
    r"[\s:.|>\]),;-]*(?:[a-z][\w@/]{0,40}[\s:=]{1,3}[-+]?\d{1,15}\.\d{1,20}(?:e[-+]?\d{1,3})?%?(?:[\s,;|]+|$)){1,16}"
)
_IS_COUNTED = _compile(r"\d\s{0,19}(?:/|of)\s{0,19}\d")


def recognise(line: str) -> Progress | None:
    """Returns the progress in a line of a known format, or None. Structured lines are not parsed here."""
    if len(line) > LINE_CHARS:
        return None
    line = without_colours(line)
    if "pid=" in line:
        line = _RAY_WORKER.sub("", _RAY_REPEATED.sub("", line), count=1)
    for reader in (_from_bar, _from_dict, _from_special, _from_words):
        found = reader(line)
        if found is not None:
            return found or None
    return None


def without_colours(line: str) -> str:
    """Removes escape sequences, and the backspaces with which Keras overwrites a line."""
    return _ANSI.sub("", line).replace("\b", "") if "\x1b" in line or "\b" in line else line


def is_hint(text: bytes) -> bool:
    """Whether the text contains a word without which no line counts as progress."""
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)


# ---------------------------------------------------------------- known formats; {} means a known line without progress


def _from_bar(line: str) -> Progress | None:
    at = line.find("%|")
    if at >= 0:
        match = _BAR.match(line, at + 2)
        if match is None:
            return {}
        description = _BAR_PERCENT.sub("", line[max(0, at - 300) : at]).strip()
        return _bar(description, int(match[1]), int(match[2]), match[3] or "")
    if "it [" in line:
        match = _OPEN_BAR.match(line.strip())
        if match is not None:
            return _bar((match[1] or "").strip(), int(match[2]), None, match[3])
    return None


def _bar(description: str, step: int, total: int | None, rest: str) -> Progress:
    yolo = _YOLO_COLUMNS.match(description)
    name = "" if yolo else description.rstrip(": ")
    if _BAR_PREPARES.search(name):
        return {}
    if _BAR_EVALUATES.search(name):
        return {"phase": "evaluating"}
    if name and not _BAR_TRAINS.search(name):
        return {}
    found: Progress = {}
    speed = _BAR_SPEED.match(rest)
    unit = (speed[2] or speed[3] or "it").lower() if speed else "it"
    rate = number(speed[1]) if speed else None
    if speed and speed[3] and isinstance(rate, float):
        rate = 1 / rate if rate > 0 else None
    if _BAR_EPOCHS.fullmatch(name) or unit in ("epoch", "epochs"):
        found["epoch"] = step
    elif unit in _STEP_UNITS:
        found["step"] = step
        if total is not None:
            found["total"] = total
        if rate is not None:
            found["rate"] = rate
    elif unit in _SAMPLE_UNITS:
        if total:
            found["percent"] = round(min(100.0, 100.0 * step / total), 1)
        if rate is not None:
            found["samples_per_second"] = rate
    else:
        return {}
    epoch = yolo or _EPOCH.search(name)
    if epoch:
        found["epoch"] = whole(number(epoch[1]))
    _add_values(found, rest if speed is None else rest[speed.end() :])
    _add_loss(found, name)
    return found


def _from_dict(line: str) -> Progress | None:
    """Parses a dict of the Hugging Face Trainer, `{'loss': 0.69, 'grad_norm': 1.2, 'epoch': 0.5}`, or a line of
    JSON.
    """
    if not _DICT.match(line):
        return None
    values = {match[1].lower(): number(match[3]) for match in _PAIR.finditer(line)}
    summary = "train_runtime" in values
    evaluated = "eval_loss" in values and "epoch" in values
    loss = next((values[name] for name in _TRAINING_LOSSES if name in values), None)
    if not (summary or evaluated or (loss is not None and any(name in values for name in _DICT_COMPANIONS))):
        return {}
    found: Progress = {}
    if loss is not None and not summary:  # the summary contains the mean loss of the whole run
        found["loss"] = loss
    if "epoch" in values:
        found["epoch"] = whole(values["epoch"])
    step = next((values[name] for name in ("step", "global_step", "iter") if name in values), None)
    if isinstance(step, float) and 0 <= step < INTEGER_LIMIT:
        found["step"] = int(step)
    if isinstance(values.get("samples_per_second"), float):
        found["samples_per_second"] = values["samples_per_second"]
    _add_metrics(found, values)
    return found


def _from_special(line: str) -> Progress | None:
    """Parses formats of libraries that print numbers at fixed positions."""
    rich = _RICH.match(line.strip()) if line.lstrip().startswith("Epoch ") else None
    keras = _KERAS.match(line) if "loss" in line else None
    yolo = _ULTRALYTICS.match(line) if "% " in line else None
    boosted = _BOOSTED.match(line) if "]\t" in line else None
    found: Progress
    if boosted:
        found, rest = {"step": int(boosted[1])}, boosted[2]
    elif yolo:
        found, rest = {"epoch": int(yolo[1]), "step": int(yolo[2]), "total": int(yolo[3])}, yolo[4]
    elif rich:
        found, rest = {"epoch": int(rich[1]), "step": int(rich[2]), "total": int(rich[3])}, rich[4]
    elif keras:
        of_steps = {} if keras[2].isalpha() else {"total": int(keras[2])}
        found, rest = {"step": int(keras[1]), **of_steps}, keras[3]
    else:
        place = _BRACKETS.search(line) or _TRAIN_STEPS.search(line) or _TRAIN_SAMPLES.search(line)
        if place is None:
            return None
        if not _is_preamble(line[: place.start()]):
            return {}
        if place.re is _TRAIN_SAMPLES:
            found = {"epoch": int(place[1]), "percent": number(place[2])}
        else:
            epoch, step, total = [int(group) for group in place.groups() if group is not None]
            found = {"epoch": epoch, "step": step, "total": total}
        rest = line[place.end() :]
    _add_values(found, rest)
    _add_speed(found, rest)
    return found


def _from_words(line: str) -> Progress | None:
    """Parses hand-written lines, which must contain at least two of epoch, step and loss, preceded only by a log
    prefix.
    """
    epoch, step, losses = _EPOCH.search(line), _STEP.search(line), list(_losses(line))
    weak = step is not None and step[1].lower() in _WEAK_STEPS and step[3] is None
    if weak and not losses:
        step = None
    places = [match.start() for match in (epoch, step) if match is not None] + [start for start, _, _ in losses]
    if not places or not _is_preamble(line[: min(places)]):
        return None
    found: Progress = {}
    if epoch:
        found["epoch"] = whole(number(epoch[1]))
    if step:
        found["step"] = _integer(step[2])
        if step[3]:
            found["total"] = _integer(step[3])
    if (epoch is not None) + (step is not None) + bool(losses) < 2:
        alone = epoch or (step if step is not None and step[3] else None)
        if alone is None:
            return None
        _add_speed(found, line[alone.end() :])
        if _IS_COUNTED.search(alone[0]) and _MEASURES.fullmatch(line, alone.end()):
            _add_values(found, line)
            return found
        bare = _DECORATION.fullmatch(line, alone.end()) is not None
        return found if bare or "rate" in found or "samples_per_second" in found else None
    _add_values(found, line)
    _add_speed(found, line)
    return found


def _is_preamble(text: str) -> bool:
    """Whether `text` is a log prefix (times, levels, logger names, ranks) rather than the beginning of a sentence."""
    if len(text) > _PREFIX_CHARS:
        return False
    for match in _PREFIX_WORD.finditer(_BRACKETED.sub(" ", text)):
        word = match[1]
        if _PREFIX_DENIED.fullmatch(word) or not (match[2] or _PREFIX_ALLOWED.fullmatch(word)):
            return False
    return True


# ---------------------------------------------------------------- numbers and names


def _losses(text: str) -> Iterator[tuple[int, str, Any]]:
    """Yields each loss as the position of its name, the word before it, and its value."""
    for match in _LOSS.finditer(text):
        start = match.start()
        before = _WORD_BEFORE.search(text, max(0, start - 18), start)
        if before is None and start and (text[start - 1].isalnum() or text[start - 1] in "_"):
            continue
        yield (before.start(1) if before else start), (before[1].lower() if before else ""), number(match[1])


def _add_loss(found: Progress, text: str) -> None:
    if "loss" in found:
        return
    for _, word, value in _losses(text):
        if not word or _LOSS_WORDS.fullmatch(word):
            found["loss"] = value
            return


def _add_values(found: Progress, text: str) -> None:
    _add_loss(found, text)
    values = {match[1].lower(): number(match[3]) for match in _PAIR.finditer(text)}
    _add_metrics(found, values)


def _add_metrics(found: Progress, values: dict[str, Any]) -> None:
    chosen = [name for name in values if name not in _TRAINING_LOSSES and not _NO_METRICS.fullmatch(name)]
    if chosen:
        found["metrics"] = {name: values[name] for name in chosen[:_METRICS]}


def _add_speed(found: Progress, text: str) -> None:
    rate, slow, elapsed = _RATE.search(text), _SECONDS_PER_STEP.search(text), _MS_PER_ITERATION.search(text)
    value = number(rate[1]) if rate else None
    per_step = slow or elapsed
    if value is None and per_step is not None:
        duration = number(per_step[1])
        in_ms = slow is None or slow[2].lower() == "ms"
        value = (1000 if in_ms else 1) / duration if isinstance(duration, float) and duration > 0 else None
    if value is not None:
        found["rate"] = value
    samples = _SAMPLES.search(text) or _SAMPLES_NAMED.search(text)
    value = number(samples[1].rstrip(",.")) if samples else None
    if value is not None:
        found["samples_per_second"] = value


def number(text: str) -> Any:
    """Returns a float, or "nan", "inf", "-inf"; None if the text is not a number."""
    try:
        return json_safe(float(text.replace(",", "")))
    except ValueError:
        return None


def _integer(text: str) -> int:
    return int(text.replace(",", ""))


def whole(value: Any) -> Any:
    """Converts a float with an integral value to an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
