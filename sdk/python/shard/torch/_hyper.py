# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters: libshard's texts and torch's dicts."""

# torch's tuples and the keys of their parts.
_TUPLES = {
    "betas": ("beta1", "beta2"),
    "etas": ("etaminus", "etaplus"),
    "eps": ("eps1", "eps2"),
    "step_sizes": ("step_size_min", "step_size_max"),
}
_FLAGS = "amsgrad", "nesterov", "centered", "maximize"


def group_values(text):
    """Returns the hyperparameters of "adamw?lr=0.001&beta1=0.9..." as torch's
    param groups have them; words, such as a profile, are left out."""
    numbers = {}
    for pair in text.partition("?")[2].split("&"):
        key, _, value = pair.partition("=")
        try:
            numbers[key] = float(value)
        except ValueError:
            pass
    for name, keys in _TUPLES.items():
        if keys[0] in numbers:
            numbers[name] = tuple(numbers.pop(key) for key in keys)
    return {key: bool(value) if key in _FLAGS else value
            for key, value in numbers.items()}


def numbers_of(group):
    """Returns the numbers in a dict of torch's by the keys of libshard."""
    numbers = {}
    for name, value in group.items():
        if name in _TUPLES and isinstance(value, (tuple, list)):
            numbers.update(zip(_TUPLES[name], map(float, value)))
        elif name != "params":
            try:
                numbers[name] = float(value)
            except (TypeError, ValueError):
                pass  # No hyperparameter of libshard.
    return numbers


def hyper_text(group):
    """Returns the text of a group of a program's: its "optimizer", else the
    hyperparameters that differ from the default group's."""
    others = {key: value for key, value in group.items()
              if key not in ("params", "optimizer")}
    numbers = numbers_of(others)
    known = set(numbers) | {name for name, keys in _TUPLES.items()
                            if keys[0] in numbers}
    for key in others:
        if key not in known:
            raise ValueError(f"param group: {key!r} is no number")
    text = group.get("optimizer", "")
    pairs = "&".join(f"{key}={value!r}" for key, value in numbers.items())
    if not pairs:
        return text or "?"
    return f"{text}{'&' if '?' in text else '?'}{pairs}"
