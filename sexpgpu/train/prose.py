"""A generated text: tales told by a small grammar of English, drawn by counter, the same bytes on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sexpgpu.randomness import key_of, words_of

# A capitalised word in braces is replaced by one of its alternatives, these by their own braces in turn.
GRAMMAR: dict[str, str] = {
    "PARAGRAPH": "{SENTENCE} {SENTENCE} {SENTENCE}|{SENTENCE} {SENTENCE} {SENTENCE} {SENTENCE}|{SENTENCE} {SPEECH}|"
    "{SPEECH}\n\n{REPLY}|{TIME}, {CLAUSE}. {SENTENCE} {SENTENCE}|{SPEECH}\n\n{REPLY}\n\n{SENTENCE} {SENTENCE}",
    "SENTENCE": "{SUBJECT} {PAST}.|{SUBJECT} {PAST}.|{SUBJECT} {PAST}, and {PRONOUN} {PAST}.|{TIME}, {CLAUSE}.|"
    "{SUBJECT} {PAST} because {CLAUSE}.|When {CLAUSE}, {CLAUSE}.|The {NOUN} was {ADJECTIVE} and {ADJECTIVE}.|"
    "{ONE} was as {ADJECTIVE} as a {NOUN}.|There was {A_NOUN} {PLACE}.|{NUMBER} {NOUN}s lay {PLACE}.|"
    "But {CLAUSE}.|{SUBJECT} had {NUMBER} {NOUN}s and {A_NOUN}.",
    "CLAUSE": "{PERSON} {PAST}|{PRONOUN} {PAST}|the {PEOPLE} {PAST}|the {NOUN} fell {PLACE}|the {WEATHER} came",
    "SUBJECT": "{ONE}|{ONE}|{PERSON} and the {PEOPLE}",
    "ONE": "{PERSON}|{PERSON}|the {PEOPLE}|the {ADJECTIVE} {PEOPLE}",
    "PAST": "{TOOK} {THE_NOUN}|{TOOK} {THE_NOUN} {PLACE}|{WENT} {PLACE}|{WENT} {ADVERB} {PLACE}|{TOOK} {A_NOUN}|"
    "{WENT} with the {PEOPLE}|{TOOK} the {PEOPLE}|gave {THE_NOUN} to the {PEOPLE}|said nothing",
    "SPEECH": '"{SAYING}," said {PERSON}.|"{SAYING}," said the {PEOPLE} {ADVERB}.|"{QUESTION}?" asked {PERSON}.',
    "REPLY": '"{ANSWER}," answered {PERSON}.|"{ANSWER}," said the {PEOPLE}, "and {SAYING}."',
    "SAYING": "we must find {THE_NOUN}|I have seen {A_NOUN} {PLACE}|the {NOUN} is {ADJECTIVE}|nobody {WENT} {PLACE}|"
    "the {WEATHER} is coming|you are {ADJECTIVE} today|give me {THE_NOUN}",
    "QUESTION": "where is {THE_NOUN}|who {TOOK} {THE_NOUN}|why is the {NOUN} so {ADJECTIVE}|have you seen {A_NOUN}",
    "ANSWER": "yes|no|not yet|perhaps|it is {PLACE}|I do not know|ask the {PEOPLE}|the {PEOPLE} {TOOK} it",
    "THE_NOUN": "the {NOUN}|the {ADJECTIVE} {NOUN}|the {NOUN} of the {PEOPLE}|every {NOUN}",
    "A_NOUN": "a {NOUN}|a {HARD} {NOUN}|a {HARD}, {ADJECTIVE} {NOUN}",
    "PERSON": "Anna|Bruno|Clara|Dario|Edith|Felix|Greta|Hugo|Iris|Jonas|Katja|Leon|Mira|Nils|Olga|Paul",
    "PRONOUN": "she|he|they|nobody|everyone",
    "PEOPLE": "miller|baker|sailor|teacher|shepherd|queen|smith|doctor|weaver|fisherman|stranger|guard",
    "NOUN": "lantern|basket|river|letter|key|garden|boat|window|book|coat|hammer|mountain|pear|door|clock|bridge|"
    "stone|ladder|map|fish|candle|blanket|road|mirror|bell|tree|horse|cup|wall|ribbon|coin|cloud",
    "ADJECTIVE": "old|quiet|heavy|bright|narrow|green|broken|strange|warm|empty|tall|gentle|grey|hidden|early|round",
    "HARD": "small|silver|wooden|long|red|cold|deep|dusty|blue|wide|lost|new",
    "ADVERB": "slowly|at once|carefully|without a word|again|together|gladly|late|in silence|twice",
    "PLACE": "by the river|in the garden|under the bridge|on the hill|behind the mill|at the harbour|near the well|"
    "across the square|over the wall|in the kitchen|beyond the forest|beside the road",
    "TOOK": "took|found|carried|opened|painted|wanted|sold|kept|washed|hid|mended|remembered",
    "WENT": "went|ran|walked|waited|slept|sang|stood|worked|returned|danced",
    "TIME": "In the morning|At noon|That evening|The next day|In winter|Before dawn|After the rain|Long ago",
    "NUMBER": "two|three|four|five|seven|nine|twelve|forty",
    "WEATHER": "rain|snow|storm|fog|wind|frost",
}
# Where a capital belongs; what goes on after a quotation (`?" asked`) does not begin anew.
SENTENCE_START = re.compile(r'(?:^|\n|\. )"?[a-z]')
RULES = {name: tuple(rule.split("|")) for name, rule in GRAMMAR.items()}


def prose(size_bytes: int) -> bytes:
    """The first `size_bytes` bytes of the text."""
    choices = chances()
    paragraphs: list[str] = []
    size = 0
    while size < size_bytes:
        paragraphs.append(paragraph(choices) + "\n\n")
        size += len(paragraphs[-1])
    return "".join(paragraphs).encode("ascii")[:size_bytes]


def chances() -> Iterator[int]:
    """Random 32-bit words without end."""
    part = 0
    while True:
        yield from words_of(key_of(0, "text", part, "builtin"), 1 << 14).tolist()
        part += 1


def paragraph(choices: Iterator[int]) -> str:
    """One expansion of the grammar, leftmost name first, with a capital at the beginning of each sentence."""
    told: list[str] = []
    waiting = ["{PARAGRAPH}"]
    while waiting:
        before, brace, rest = waiting.pop().partition("{")
        told.append(before)
        if brace:
            name, _, after = rest.partition("}")
            alternatives = RULES[name]
            waiting += [after, alternatives[next(choices) % len(alternatives)]]
    return SENTENCE_START.sub(lambda found: found[0].upper(), "".join(told))
