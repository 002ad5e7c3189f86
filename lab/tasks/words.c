// SPDX-License-Identifier: Apache-2.0
#include "lab/tasks/words.h"

#include <assert.h>
#include <stdio.h>

// No word is part of another one: so no key is part of another key, nor of a pair (tests/unit/lab/tasks/test_words.c).
static const char *const words[] = {
    "stone",    "cloud",    "garden",    "window",    "bridge",   "castle",    "forest",    "meadow",    "harbor",
    "island",   "valley",   "mountain",  "desert",    "canyon",   "glacier",   "volcano",   "prairie",   "lagoon",
    "orchard",  "vineyard", "pasture",   "thicket",   "cavern",   "summit",    "ravine",    "pebble",    "boulder",
    "gravel",   "marble",   "granite",   "copper",    "silver",   "bronze",    "nickel",    "cobalt",    "mercury",
    "platinum", "crystal",  "diamond",   "emerald",   "sapphire", "amber",     "coral",     "pearl",     "velvet",
    "cotton",   "linen",    "leather",   "ribbon",    "button",   "needle",    "thread",    "blanket",   "pillow",
    "carpet",   "curtain",  "mirror",    "lantern",   "candle",   "chimney",   "kitchen",   "cellar",    "attic",
    "balcony",  "corridor", "ladder",    "hammer",    "chisel",   "shovel",    "bucket",    "barrel",    "basket",
    "bottle",   "kettle",   "saucer",    "spoon",     "plate",    "napkin",    "pepper",    "ginger",    "garlic",
    "onion",    "carrot",   "turnip",    "radish",    "cabbage",  "lettuce",   "spinach",   "pumpkin",   "cucumber",
    "tomato",   "potato",   "lemon",     "orange",    "cherry",   "peach",     "apricot",   "banana",    "mango",
    "walnut",   "almond",   "chestnut",  "biscuit",   "butter",   "cheese",    "yogurt",    "honey",     "syrup",
    "vinegar",  "mustard",  "noodle",    "muffin",    "pancake",  "pudding",   "chocolate", "coffee",    "rabbit",
    "badger",   "beaver",   "otter",     "weasel",    "ferret",   "squirrel",  "hedgehog",  "monkey",    "gorilla",
    "leopard",  "panther",  "tiger",     "lion",      "giraffe",  "zebra",     "camel",     "donkey",    "horse",
    "pony",     "buffalo",  "antelope",  "gazelle",   "moose",    "elephant",  "walrus",    "dolphin",   "whale",
    "shark",    "salmon",   "trout",     "herring",   "octopus",  "lobster",   "shrimp",    "turtle",    "lizard",
    "iguana",   "python",   "cobra",     "falcon",    "eagle",    "sparrow",   "robin",     "pigeon",    "parrot",
    "penguin",  "pelican",  "flamingo",  "ostrich",   "peacock",  "rooster",   "goose",     "spider",    "beetle",
    "cricket",  "hornet",   "mosquito",  "dragonfly", "maple",    "willow",    "cedar",     "birch",     "spruce",
    "juniper",  "cypress",  "bamboo",    "clover",    "thistle",  "lavender",  "jasmine",   "orchid",    "tulip",
    "daisy",    "violet",   "lily",      "lotus",     "cactus",   "fern",      "moss",      "acorn",     "pollen",
    "petal",    "branch",   "blossom",   "anchor",    "rudder",   "paddle",    "vessel",    "ferry",     "galley",
    "raft",     "canoe",    "sailor",    "captain",   "pirate",   "admiral",   "wagon",     "carriage",  "bicycle",
    "tractor",  "engine",   "piston",    "turbine",   "pulley",   "magnet",    "compass",   "telescope", "camera",
    "piano",    "violin",   "trumpet",   "clarinet",  "flute",    "banjo",     "guitar",    "cello",     "drum",
    "whistle",  "melody",   "rhythm",    "chorus",    "ballet",   "theater",   "museum",    "gallery",   "library",
    "temple",   "chapel",   "cathedral", "palace",    "cottage",  "cabin",     "hotel",     "market",    "factory",
    "quarry",   "tunnel",   "railway",   "highway",   "avenue",   "village",   "suburb",    "province",  "kingdom",
    "empire",   "colony",   "republic",  "senate",    "council",  "treaty",    "charter",   "ballot",    "lawyer",
    "doctor",   "dentist",  "plumber",   "carpenter", "baker",    "farmer",    "shepherd",  "teacher",   "scholar",
    "student",  "poet",     "painter",   "sculptor",  "dancer",   "juggler",   "wizard",    "knight",    "squire",
    "monarch",  "prince",   "duchess",   "butler",    "tailor",   "cobbler",   "merchant",  "banker",    "soldier",
    "sergeant", "general",  "pilot",     "astronaut", "planet",   "comet",     "meteor",    "galaxy",    "nebula",
    "eclipse",  "horizon",  "sunrise",   "twilight",  "midnight", "morning",   "winter",    "summer",    "autumn",
    "spring",   "january",  "thunder",   "lightning", "tornado",  "hurricane", "blizzard",  "drizzle",   "rainbow",
    "breeze",   "frost",    "icicle",    "snowflake", "puddle",   "gentle",    "brave",     "clever",    "quiet",
    "humble",   "jolly",    "merry",     "proud",     "loyal",    "honest",    "polite",    "patient",   "eager",
    "curious",  "cheerful", "graceful",  "nimble",    "sturdy",   "rugged",    "fragile",   "slender",   "narrow",
    "broad",    "crooked",  "smooth",    "bitter",    "salty",    "spicy",     "savory",    "crisp",     "tender",
    "ancient",  "modern",   "royal",     "rural",     "urban",    "hollow",    "golden",    "crimson",   "scarlet",
    "purple",   "indigo",   "turquoise", "yellow",    "ivory",    "azure",     "dusty",     "rusty",     "foggy",
    "sunny",    "windy",    "stormy",    "misty",     "frozen",   "molten",    "liquid",    "solid",     "rapid",
    "sudden",   "gradual",  "distant",   "secret",    "sacred",   "famous",    "wooden",    "metallic",  "woolen",
    "silken",   "paper",    "pencil",    "crayon",    "ledger",   "notebook",  "envelope",  "parcel",    "letter",
    "stamp",    "postcard", "magazine",  "journal",   "puzzle",   "riddle",    "domino",    "marathon",  "trophy",
    "medal",    "racket",   "javelin",   "archer",    "hockey",   "tennis",    "soccer",    "rugby",     "cyclist",
    "wrestler", "saddle",   "bridle",    "stable",    "kennel",   "burrow",    "feather",   "whisker",   "antler",
    "hoof",     "tusk",     "plumage",   "cocoon",    "elbow",    "shoulder",  "ankle",     "muscle",    "finger",
    "thumb",    "eyebrow",  "forehead",  "stomach",   "vitamin",
};
static_assert(sizeof words / sizeof *words == SL_N_WORDS, "lab/tasks/words.h says how many words there are");

const char *sl_word(uint64_t i) {
    assert(i < SL_N_WORDS);
    return words[i];
}

void sl_split_pair(uint64_t i, uint64_t n, uint64_t *first_out, uint64_t *second_out) {
    assert(i < n * (n - 1));
    *first_out = i / (n - 1);
    *second_out = i % (n - 1);
    *second_out += *second_out >= *first_out; // all but the first
}

void sl_word_pair(uint64_t i, char key_out[SL_WORD_PAIR_BYTES]) {
    uint64_t first, second;
    sl_split_pair(i, SL_N_WORDS, &first, &second);
    snprintf(key_out, SL_WORD_PAIR_BYTES, "%s-%s", words[first], words[second]);
}
