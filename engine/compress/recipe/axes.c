// SPDX-License-Identifier: Apache-2.0
// Purpose: the axes of recipes, a row each: parsing, writing, bounds, fingerprint, checks and help all come from it.
#include <inttypes.h>

#include "engine/compress/recipe/internal.h"

// --- words -------------------------------------------------------------------------------------------------------

#define FIELD(kind, first, last)                                                                                       \
    { &sl_kind_##kind, SL_AT(first, last), 0, 0, NULL, 0 }
#define COUNT(kind, member, min, max)                                                                                  \
    { &sl_kind_##kind, SL_AT(member, member), min, max, NULL, 0 }
#define WORDS(kind, first, last, list)                                                                                 \
    { &sl_kind_##kind, SL_AT(first, last), 0, 0, list, sizeof(list) / sizeof((list)[0]) }
#define WORD(name)                                                                                                     \
    { name, {0}, 0, 0 }
#define WITH(name, argument)                                                                                           \
    { name, argument, 0, 0 }

static const struct sl_word scores[] = {
#define X(NAME, word, ...) [SL_SCORE_##NAME] = WORD(#word),
    SL_SCORE_MAP(X)
#undef X
};
static const struct sl_word values[] = {
    [SL_VALUE_OFF] = WORD("off"),
    [SL_VALUE_CAOTE] = WORD("caote"),
    [SL_VALUE_FASTCAOTE] = WORD("fastcaote"),
    [SL_VALUE_CAOTE_HEADS] = WORD("caote-heads"),
    [SL_VALUE_FASTCAOTE_HEADS] = WORD("fastcaote-heads"),
};
static const struct sl_word scopes[] = {
    WITH("sinks", COUNT(count, sinks, 1, SL_RECIPE_MAX_SLOTS)),
    WITH("recent", FIELD(amount, recent, recent)),
    {"std", FIELD(ratio, std, std), SL_NEEDS_BUDGET, 0},
    {"stabilizers", COUNT(count, stabilizers, 1, SL_RECIPE_MAX_SLOTS), SL_NEEDS_BUDGET, 0},
    {"tail", COUNT(count, tail, 1, SL_RECIPE_MAX_SLOTS), SL_NEEDS_BUDGET, 0},
};
static const struct sl_word pools[] = {
    [SL_POOL_NONE] = WITH("none", COUNT(fixed, pool_kernel, 1, 1)),
    [SL_POOL_MAX] = WITH("max", COUNT(odd, pool_kernel, 3, 63)),
    [SL_POOL_AVG] = WITH("avg", COUNT(odd, pool_kernel, 3, 63)),
};
static const struct sl_word layers[] = {
    [SL_LAYERS_UNIFORM] = WORD("uniform"), [SL_LAYERS_D2O] = WORD("d2o"),
    [SL_LAYERS_D2O_RAW] = WORD("d2o-raw"), [SL_LAYERS_D2O_MINMAX] = WORD("d2o-minmax"),
    [SL_LAYERS_PYRAMID] = WORD("pyramid"),
};
static const struct sl_word heads[] = {
    [SL_HEADS_UNIFORM] = WORD("uniform"), [SL_HEADS_ADAPTIVE] = WORD("adaptive"), [SL_HEADS_LAYER] = WORD("layer"),
    [SL_HEADS_GLOBAL] = WORD("global"),   [SL_HEADS_PAGES] = WORD("pages"),
};
static const struct sl_word whens[] = {
    {"chunk", {0}, 0, SL_WHEN_END}, // "chunk+end" is the same: the last chunk is a chunk
    WORD("end"),
    WORD("step"),
};
static const struct sl_word evicted[] = {
    [SL_EVICTED_DROP] = WORD("drop"),
    [SL_EVICTED_MERGE] = {"merge", FIELD(weight, merge_beta, merge_beta), SL_MAY_LACK, 0},
};
static const struct sl_word places[] = {
    WITH("resident", FIELD(resident, topk, replicas)),
    WITH("offload", FIELD(offload, offload, offload_auto)),
};
static const struct sl_word retrieves[] = {[SL_RETRIEVE_NEAR] = WORD("near"), [SL_RETRIEVE_PULL] = WORD("pull")};
static const struct sl_word scans[] = {
    [SL_SCAN_STORED] = WORD("stored"), [SL_SCAN_INT8] = WORD("int8"), [SL_SCAN_INT1] = WORD("int1")};
static const struct sl_word positions[] = {
    [SL_POSITION_ORIGINAL] = WORD("original"), [SL_POSITION_SLOT] = WORD("slot")};

// --- axes --------------------------------------------------------------------------------------------------------

static bool has_window(const struct sl_score_traits *traits) {
    return traits->rows == SL_ROWS_WINDOW;
}

static bool is_pooled(const struct sl_score_traits *traits) {
    return traits->is_pooled;
}

// To add an axis: add a row in the order in which people read a recipe, its members of struct sl_recipe, and their
// default in recipe.c if it is not 0.
const struct sl_axis sl_axes[] = {
    {"score", WORDS(one_of, score, score, scores), 0, NULL, "how slots are ranked"},
    {"value", WORDS(one_of, value, value, values), SL_NEEDS_BUDGET, NULL,
     "whether the change of the attention output replaces the score; -heads: of every query head"},
    {"scope", WORDS(parts, sinks, tail, scopes), SL_UNCACHED, NULL,
     "what stays whatever its score; a ratio is of the budget"},
    {"window", COUNT(count, window, 1, SL_RECIPE_MAX_CHUNK), 0, has_window, "rows that snapkv observes"},
    {"pool", WORDS(one_of, pool, pool_kernel, pools), 0, is_pooled, "over neighbouring slots of the window's sums"},
    {"seed", COUNT(count, seed, 0, UINT64_MAX), SL_ANY_METHOD, sl_score_is_seeded, "of random"},
    {"budget", FIELD(budget, budget, budget), 0, NULL, "slots per layer and KV head, or a ratio of the prompt"},
    {"layers", WORDS(one_of, layers, layers, layers), SL_NEEDS_BUDGET, NULL, "how layers share the budget"},
    {"exempt", FIELD(exempt, exempt, exempt_last), SL_NEEDS_BUDGET, NULL, "layers that evict nothing"},
    {"heads", WORDS(one_of, heads, heads, heads), SL_NEEDS_BUDGET, NULL,
     "how heads share a layer's; layer: all keep the same slots; global: heads of all layers compete; pages: the same, "
     "and each keeps whole pages"},
    {"when", WORDS(flags, when, when, whens), 0, NULL,
     "behind every chunk, at the prompt's end, at every step of decode"},
    {"evicted", WORDS(one_of, evicted, merge_beta, evicted), SL_NEEDS_BUDGET, NULL,
     "merge: into the slot most like it; the weight is that of the newest similarity in the threshold"},
    {"format", FIELD(format, format, dense_format), SL_ANY_METHOD, NULL,
     "of final slots; of ranges of layers, of dense ones"},
    {"bits", FIELD(bits, format, dense_format), SL_ANY_METHOD, NULL, "short for format=f16/dense:intB"},
    {"place", WORDS(part, offload, offload_auto, places), 0, NULL, "which layers kvstores hold"},
    {"retrieve", WORDS(one_of, retrieve, retrieve, retrieves), SL_NEEDS_OFFLOAD, NULL,
     "near: stores search with the query; pull: decode fetches channels of all slots and searches"},
    {"ahead", COUNT(count, ahead, 0, 1), SL_NEEDS_OFFLOAD, NULL,
     "of near; 1: asked a layer earlier, with the query that is predicted there"},
    {"topk", COUNT(count, topk, 1, SL_RECIPE_MAX_SLOTS), SL_NEEDS_OFFLOAD, NULL,
     "slots that a step finds per KV head of an offloaded layer"},
    {"keep", COUNT(count, keep, 0, SL_RECIPE_MAX_SLOTS), SL_NEEDS_OFFLOAD, NULL,
     "rows that decode keeps beside those of the step; as many as topk if not named"},
    {"channels", COUNT(count, channels, 1, SL_RECIPE_MAX_CHANNELS), SL_NEEDS_OFFLOAD, NULL,
     "critical channels per KV head of an offloaded layer"},
    {"scan", WORDS(one_of, scan, scan, scans), SL_NEEDS_OFFLOAD, NULL, "format of the keys that are searched"},
    {"replicas", COUNT(count, replicas, 1, 2), SL_NEEDS_OFFLOAD, NULL, "stores that hold each part"},
    {"positions", WORDS(one_of, positions, positions, positions), 0, NULL, "of keys: in the prompt, or their slot"},
    {"chunk", COUNT(pages, chunk_tokens, SL_PAGE_SLOTS, SL_RECIPE_MAX_CHUNK), SL_ANY_METHOD | SL_UNCACHED, NULL,
     "prompt tokens per forward pass of prefill: a multiple of 64"},
    {NULL, {0}, 0, NULL, NULL},
};

const struct sl_axis *sl_axis_find(const char *name) {
    const struct sl_axis *axis = sl_axes;
    while (axis->name != NULL && strcmp(axis->name, name) != 0) {
        axis++;
    }
    return axis->name != NULL ? axis : NULL;
}

char *sl_axis_text(const struct sl_axis *axis, const struct sl_recipe *recipe, char *buf, size_t buf_bytes) {
    struct sl_text_buffer text = {buf, buf_bytes, 0};
    buf[0] = '\0';
    if (axis->field.kind->put != NULL) {
        axis->field.kind->put(&axis->field, recipe, &text);
    }
    return buf;
}

// Members that differ in bytes may still be equal, because of padding between them and of ranges that do not count.
bool sl_axis_same(const struct sl_axis *axis, const struct sl_recipe *a, const struct sl_recipe *b) {
    const struct sl_field *field = &axis->field;
    char x[SL_RECIPE_TEXT_BYTES], y[SL_RECIPE_TEXT_BYTES];
    return memcmp((const char *)a + field->at, (const char *)b + field->at, field->bytes) == 0 ||
           (field->bytes > sizeof(int64_t) &&
            strcmp(sl_axis_text(axis, a, x, sizeof x), sl_axis_text(axis, b, y, sizeof y)) == 0);
}

// --- help --------------------------------------------------------------------------------------------------------

static void put_form(const struct sl_field *field, struct sl_text_buffer *out) {
    bool joined = field->kind == &sl_kind_flags || field->kind == &sl_kind_parts;
    if (field->max > 0) {
        sl_text_buffer_put(out, "%" PRIu64 "-%" PRIu64, field->min, field->max);
    } else {
        sl_text_buffer_put(out, "%s", field->kind->form);
    }
    for (int i = 0; i < field->n_words; i++) {
        const struct sl_word *word = &field->words[i];
        const struct sl_kind *kind = word->argument.kind;
        sl_text_buffer_join(out, joined ? "+" : " ", word->name);
        if (kind != NULL && kind->separator != '\0') {
            sl_text_buffer_put(out, word->flags & SL_MAY_LACK ? "[%c%s]" : "%c%s", kind->separator, kind->form);
        }
    }
}

bool sl_recipe_axis_help(int index, struct sl_axis_help *help_out) {
    const struct sl_axis *axis = &sl_axes[index];
    struct sl_recipe usual = sl_recipe_default;
    usual.topk = usual.keep = SL_RECIPE_DEFAULT_TOPK;
    usual.channels = SL_RECIPE_DEFAULT_CHANNELS;
    if (axis->name == NULL) {
        return false;
    }
    help_out->name = axis->name;
    help_out->help = axis->help;
    help_out->values[0] = '\0';
    put_form(&axis->field, &(struct sl_text_buffer){help_out->values, sizeof help_out->values, 0});
    sl_axis_text(axis, &usual, help_out->usual, sizeof help_out->usual);
    return true;
}
