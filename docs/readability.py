"""How the pages read: long lines, long sentences, phrases to avoid. ``python docs/readability.py``.

One line a finding, then the mean length of the sentences of each page. ``tests/docs`` asserts it.
"""

import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
MAX_COLUMNS = 100
MAX_WORDS = 30
MAX_MEAN_WORDS = 16.0
# Logs of engineering: the length of their sentences is not measured.
LOGS = ("CHANGELOG.md", "docs/decisions.md", "docs/engineering_log.md", "docs/reproduction.md")
# Written by programs.
GENERATED = ("docs/api/", "docs/gallery/", "docs/command_line/", "docs/benchmarks.md")

# What to say instead stands beside it.
PHRASES = {
    r"\bof (?:one's|the user's|your) own\b": "custom, user-defined",
    r"\bwhat there is not\b": "name the thing: unknown field",
    r"\bwhoever\b": "name who",
    r"\bnobody hears\b": "shards do not communicate",
    r"\bat the door\b": "on entry",
    r"\btwice the same\b": "equal, identical",
    r"\bin the clear\b": "public, un-noised",
    r"\bwhat is (?:kept|told|heard|played|finished)\b": "name the thing",
    r"\bby itself\b": "a single run; alone; automatically",
    r"\bhears? of\b": "receives, is reported",
    r"\blots\b": "random bits",
    r"\blanes\b": "worker threads",
    r"\bmean nothing\b": "are undefined",
}


def pages(root: pathlib.Path = ROOT) -> list[pathlib.Path]:
    """Return every page that a person wrote: Markdown of the project, sorted."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("experiments/**/*.md")]
    found += root.glob("paper/*.md")
    names = {path: path.relative_to(root).as_posix() for path in found}
    return sorted(path for path, name in names.items() if not name.startswith(GENERATED))


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, line) of what is read as text: no code, tables, headings or HTML."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith(("```", ":::", "---")):
            fenced = not fenced and line.lstrip().startswith("```")
            yield number, ""
        elif fenced or line.lstrip().startswith(("|", "#", "<", "![", ":")):
            yield number, ""
        else:
            yield number, line


def sentences(text: str) -> list[str]:
    """Return the sentences of a page's prose; a list's items end one, a link is its text."""
    paragraphs = [""]
    for _, line in prose(text):
        if not line.strip() or re.match(r"\s*([-*]|\d+\.) ", line):
            paragraphs.append("")
        paragraphs[-1] += " " + re.sub(r"^\s*([-*]|\d+\.) ", "", line).strip()
    found = []
    for paragraph in paragraphs:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
        plain = re.sub(r"`[^`]*`|\$[^$]*\$", "X", plain)
        plain = re.sub(r"\b(e\.g|i\.e|et al|Fig|Figs|Sec|Eq|vs|cf|No)\.", r"\1", plain)
        found += [part.strip() for part in re.split(r"(?<=[.!?])[)*\"]*\s+", plain)]
    return [sentence for sentence in found if len(words(sentence)) > 1]


def words(sentence: str) -> list[str]:
    """Return the words of a sentence: what holds a letter or a digit."""
    return [word for word in sentence.split() if re.search(r"\w", word)]


def mean_words(text: str) -> float:
    """Return the mean number of words of a page's sentences, 0 without any."""
    lengths = [len(words(sentence)) for sentence in sentences(text)]
    return sum(lengths) / max(len(lengths), 1)


def findings(text: str, name: str) -> list[str]:
    """Return what is wrong with a page, one line each."""
    found = []
    for number, line in prose(text):
        if len(line) > MAX_COLUMNS and " " in line[:MAX_COLUMNS].strip():
            found.append(f"{name}:{number}: {len(line)} columns, at most {MAX_COLUMNS}")
        for phrase, better in PHRASES.items():
            if said := re.search(phrase, line, flags=re.IGNORECASE):
                found.append(f"{name}:{number}: {said[0]!r}: {better}")
    if name in LOGS or name.startswith("experiments/"):
        return found
    found += [
        f"{name}: {len(words(sentence))} words, at most {MAX_WORDS}: {sentence[:80]}..."
        for sentence in sentences(text)
        if len(words(sentence)) > MAX_WORDS
    ]
    if (mean := mean_words(text)) > MAX_MEAN_WORDS:
        found.append(f"{name}: {mean:.1f} words a sentence, at most {MAX_MEAN_WORDS:g} in the mean")
    return found


def main() -> int:
    """Print the findings of all pages and the mean of each; return how many there are."""
    count = 0
    for path in pages():
        text, name = path.read_text(), path.relative_to(ROOT).as_posix()
        found = findings(text, name)
        count += len(found)
        print(*found, f"{name}: {mean_words(text):.1f} words a sentence", sep="\n")
    return count


if __name__ == "__main__":
    sys.exit(bool(main()))
