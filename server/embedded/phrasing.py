"""The words of questions and of fixed answers, with places for a thing's colour and shape."""

import numpy as np

from server.embedded.figures import COLOURS, SHAPES

CAN_NOT_KNOW = "I can only tell what the coloured shapes in a video do."
NOT_THERE = "There is no such object."

COLOUR = (
    "What colour is the {shape}?",
    "What color is the {shape}?",
    "Which colour does the {shape} have?",
    "Which color does the {shape} have?",
    "What is the colour of the {shape}?",
    "What is the color of the {shape}?",
    "Tell me the colour of the {shape}.",
)
COLOUR_OF_MOVER = (
    "What colour is the moving object?",
    "What color is the moving object?",
    "What colour is the object that moves?",
    "Which colour does the moving shape have?",
)
SHAPE = (
    "What shape is the {colour} object?",
    "Which shape is the {colour} object?",
    "What shape does the {colour} object have?",
    "What is the shape of the {colour} object?",
    "What is the {colour} object?",
    "What is the {colour} thing?",
)
SHAPE_OF_MOVER = (
    "What shape is the moving object?",
    "Which shape moves?",
    "What is the shape of the object that moves?",
    "What moves in the video?",
)
DIRECTION = (
    "Which way does the {colour} {shape} move?",
    "In which direction does the {colour} {shape} move?",
    "What direction does the {colour} {shape} move in?",
    "Where does the {colour} {shape} go?",
    "Which way is the {colour} object moving?",
    "In what direction is the {colour} {shape} moving?",
)
COUNT = (
    "How many objects are there?",
    "How many objects are in the video?",
    "How many shapes do you see?",
    "How many things are in the clip?",
    "Count the objects.",
    "What is the number of objects?",
)
ORDER = (
    "What happens first, and what then?",
    "What happens first and what happens then?",
    "What happens first, and what happens after that?",
    "In which order do things happen?",
    "What happens, and in what order?",
)
FIRST_OF = {
    "appears": (
        "Which object appears first?",
        "What appears first?",
        "Which shape is the first to appear?",
    ),
    "disappears": (
        "Which object disappears first?",
        "What disappears first?",
        "Which shape is the first to disappear?",
    ),
}
_APPEARS = (
    "At what second does the {colour} {shape} appear?",
    "At which second does the {colour} {shape} appear?",
    "When does the {colour} {shape} appear?",
    "When does the {colour} object show up?",
    "At what time does the {colour} object appear?",
)
_DISAPPEARS = (
    "At what second does the {colour} {shape} disappear?",
    "At which second does the {colour} {shape} disappear?",
    "When does the {colour} {shape} disappear?",
    "When does the {colour} object vanish?",
    "At what time does the {colour} object disappear?",
)
WHEN = {"appears": _APPEARS, "disappears": _DISAPPEARS}
ANYTHING_MOVES = (
    "Is anything moving?",
    "Does anything move?",
    "Is there any motion?",
    "Is something moving in the video?",
    "Do you see anything move?",
)
THING_MOVES = (
    "Does the {colour} {shape} move?",
    "Is the {colour} {shape} moving?",
    "Is the {colour} object moving?",
    "Does the {colour} object move?",
)
DESCRIBE = (
    "Describe the video.",
    "Describe the video in one sentence.",
    "Describe what happens in the video.",
    "What happens in the video?",
    "What do you see?",
    "Tell me what happens in this clip.",
    "Summarize the clip.",
    "What is in the video?",
)

_UNKNOWABLE = (
    "What is the name of the {noun}?",
    "Who is the {noun}?",
    "What is the {noun} saying?",
    "What does the {noun} say?",
    "What sound does the {noun} make?",
    "How old is the {noun}?",
    "Why does the {noun} {verb}?",
    "Where was the {noun} filmed?",
    "Who made the {noun}?",
    "What is the {noun} thinking?",
    "How much does the {noun} cost?",
    "Can you {verb} the {noun} for me?",
    "Is the {noun} happy?",
    "What did the {noun} {verb} yesterday?",
    "Do you like the {noun}?",
    "Write a {noun} about a {noun}.",
    "What brand is the {noun}?",
    "Which {noun} is this?",
    "Tell me a {noun}.",
    "{verb} the {noun}.",
    "How do I {verb} a {noun}?",
    "What is the capital of {noun}?",
    "What is {number} plus {number}?",
    "Is there a {noun} in the video?",
)
_UNKNOWABLE_AS_IS = (
    "What sound do you hear?",
    "What music is playing?",
    "What is being said?",
    "What language is spoken?",
    "Who made this video?",
    "Where was this filmed?",
    "What is your name?",
    "Who are you?",
    "How are you?",
    "Hello!",
    "What is the weather like?",
    "What is the person wearing?",
    "What is the man doing?",
    "Why?",
    "What is the title of the video?",
    "What will happen next?",
    "What day is it today?",
    "What does the text say?",
)
_NOUNS = (
    *("person", "man", "woman", "child", "dog", "cat", "bird", "car", "song", "music", "voice"),
    *("city", "country", "house", "street", "tree", "river", "camera", "actor", "singer", "player"),
    *("team", "book", "poem", "story", "joke", "film", "movie", "scene", "food", "phone", "brand"),
    *("France", "animal", "teacher", "machine", "computer", "company", "game", "ball", "recipe"),
)
_VERBS = (
    *("sing", "run", "say", "buy", "sell", "build", "cook", "write", "read", "play", "love"),
    *("explain", "translate", "open", "call", "find", "help", "make", "think", "eat", "draw"),
)
_ABSENT_COLOUR = (
    *SHAPE,
    "Which way is the {colour} object moving?",
    "Is the {colour} object moving?",
)
_ABSENT_SHAPE = COLOUR
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def unknowable(rng: np.random.Generator) -> str:
    """Returns a question that no clip of this world answers."""
    if rng.random() < 0.3:
        return str(rng.choice(_UNKNOWABLE_AS_IS))
    pattern = str(rng.choice(_UNKNOWABLE))
    return pattern.format(
        noun=_word(rng, _NOUNS), verb=_word(rng, _VERBS), number=int(rng.integers(100))
    )


def about_an_absent(rng: np.random.Generator, *, colours: set[str], shapes: set[str]) -> str:
    """Returns a question about an object that is none of these colours, or of these shapes."""
    other_shapes = [shape for shape in SHAPES if shape not in shapes]
    if other_shapes and rng.random() < 0.5:
        return str(rng.choice(_ABSENT_SHAPE)).format(shape=rng.choice(other_shapes))
    others = [colour for colour in COLOURS if colour not in colours]
    return str(rng.choice(_ABSENT_COLOUR)).format(colour=rng.choice(others))


def _word(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    """Returns one of the words, or now and then letters, so that rare tokens are met too."""
    if rng.random() < 0.75:
        return str(rng.choice(words))
    return "".join(rng.choice(list(_LETTERS), size=rng.integers(3, 9)))


def corpus() -> list[str]:
    """Returns text with every word that questions and answers are made of."""
    fixed = (CAN_NOT_KNOW, NOT_THERE, *_UNKNOWABLE, *_UNKNOWABLE_AS_IS, *_NOUNS, *_VERBS)
    patterns = (
        *(*COLOUR, *COLOUR_OF_MOVER, *SHAPE, *SHAPE_OF_MOVER, *DIRECTION, *COUNT, *ORDER),
        *(*FIRST_OF["appears"], *FIRST_OF["disappears"], *_APPEARS, *_DISAPPEARS),
        *(*ANYTHING_MOVES, *THING_MOVES, *DESCRIBE),
    )
    return [*fixed, *patterns, *COLOURS, *SHAPES]
