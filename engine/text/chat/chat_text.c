// SPDX-License-Identifier: Apache-2.0
// Purpose: text as in Python: characters, not bytes; its white space. See chat_internal.h. All text is valid UTF-8.
#include "engine/text/chat/chat_internal.h"

struct sl_chat_text sl_chat_text_of(const char *string) {
    return (struct sl_chat_text){string, strlen(string)};
}

bool sl_chat_text_equal(struct sl_chat_text a, struct sl_chat_text b) {
    return a.n_bytes == b.n_bytes && (a.n_bytes == 0 || memcmp(a.bytes, b.bytes, a.n_bytes) == 0);
}

bool sl_chat_text_is(struct sl_chat_text a, const char *string) {
    return sl_chat_text_equal(a, sl_chat_text_of(string));
}

// ---- growing --------------------------------------------------------------------------------------------------------

bool sl_chat_text_among(struct sl_chat_text a, const char *const *strings) {
    while (*strings && !sl_chat_text_is(a, *strings)) {
        strings++;
    }
    return *strings != NULL;
}

void sl_chat_append(struct sl_chat_work *work, struct sl_chat_buffer *buffer, struct sl_chat_text text) {
    if (!sl_chat_step(work, text.n_bytes) || text.n_bytes == 0) {
        return;
    }
    if (text.n_bytes > SL_CHAT_MAX_TEXT - buffer->n_bytes) {
        sl_chat_fail(work, SL_ERR_EXHAUSTED, "makes a text of more than %zu MiB", SL_CHAT_MAX_TEXT >> 20);
        return;
    }
    size_t needed = buffer->n_bytes + text.n_bytes;
    char *bytes = sl_chat_grow(work, buffer->bytes, buffer->n_bytes, needed, 1, &buffer->capacity);
    if (!bytes) {
        return;
    }
    buffer->bytes = bytes;
    memcpy(buffer->bytes + buffer->n_bytes, text.bytes, text.n_bytes);
    buffer->n_bytes = needed;
}

struct sl_chat_text sl_chat_concat(struct sl_chat_work *work, struct sl_chat_text a, struct sl_chat_text b) {
    if (a.n_bytes == 0 || b.n_bytes == 0) {
        return a.n_bytes == 0 ? b : a;
    }
    if (a.n_bytes + b.n_bytes > SL_CHAT_MAX_TEXT) {
        sl_chat_fail(work, SL_ERR_EXHAUSTED, "makes a text of more than %zu MiB", SL_CHAT_MAX_TEXT >> 20);
        return a;
    }
    char *bytes = sl_chat_step(work, a.n_bytes + b.n_bytes) ? sl_chat_alloc(work, a.n_bytes + b.n_bytes) : NULL;
    if (!bytes) {
        return a;
    }
    memcpy(bytes, a.bytes, a.n_bytes);
    memcpy(bytes + a.n_bytes, b.bytes, b.n_bytes);
    return (struct sl_chat_text){bytes, a.n_bytes + b.n_bytes};
}

// ---- characters -----------------------------------------------------------------------------------------------------

static bool continues(char byte) {
    return ((unsigned char)byte & 0xc0) == 0x80;
}

size_t sl_chat_char_bytes(struct sl_chat_text text) {
    size_t n = 1;
    while (n < text.n_bytes && continues(text.bytes[n])) {
        n++;
    }
    return n;
}

size_t sl_chat_count_chars(struct sl_chat_text text) {
    size_t n = 0;
    for (size_t i = 0; i < text.n_bytes; i++) {
        n += !continues(text.bytes[i]);
    }
    return n;
}

bool sl_chat_is_ascii(struct sl_chat_text text) {
    for (size_t i = 0; i < text.n_bytes; i++) {
        if ((unsigned char)text.bytes[i] >= 0x80) {
            return false;
        }
    }
    return true;
}

int sl_chat_excerpt(struct sl_chat_text text) {
    size_t n = text.n_bytes < 40 ? text.n_bytes : 40;
    while (n > 0 && n < text.n_bytes && continues(text.bytes[n])) {
        n--;
    }
    return (int)n;
}

// Implements str.isspace(): the bidirectional classes WS, B and S, and the category Zs.
size_t sl_chat_space_bytes(struct sl_chat_text text) {
    static const char *const wide[] = {
        "\xc2\x85", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
        "\u2007",   "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000",
    };
    if (text.n_bytes == 0) {
        return 0;
    }
    unsigned char first = (unsigned char)text.bytes[0];
    if (first < 0x80) {
        return first == ' ' || (first >= '\t' && first <= '\r') || (first >= 0x1c && first <= 0x1f);
    }
    for (size_t i = 0; i < sizeof(wide) / sizeof(*wide); i++) {
        size_t n = strlen(wide[i]);
        if (n <= text.n_bytes && memcmp(text.bytes, wide[i], n) == 0) {
            return n;
        }
    }
    return 0;
}

static bool is_one_of(struct sl_chat_text character, struct sl_chat_text chars) {
    while (chars.n_bytes > 0) {
        size_t n = sl_chat_char_bytes(chars);
        if (sl_chat_text_equal(character, (struct sl_chat_text){chars.bytes, n})) {
            return true;
        }
        chars = sl_chat_text_from(chars, n);
    }
    return false;
}

static bool is_taken_off(struct sl_chat_text character, const struct sl_chat_text *chars) {
    return chars ? is_one_of(character, *chars) : sl_chat_space_bytes(character) > 0;
}

struct sl_chat_text sl_chat_strip(struct sl_chat_text text, const struct sl_chat_text *chars,
                                  enum sl_chat_sides sides) {
    while ((sides & SL_CHAT_LEFT) && text.n_bytes > 0) {
        size_t n = sl_chat_char_bytes(text);
        if (!is_taken_off((struct sl_chat_text){text.bytes, n}, chars)) {
            break;
        }
        text = sl_chat_text_from(text, n);
    }
    while ((sides & SL_CHAT_RIGHT) && text.n_bytes > 0) {
        size_t at = text.n_bytes - 1;
        while (at > 0 && continues(text.bytes[at])) {
            at--;
        }
        if (!is_taken_off((struct sl_chat_text){text.bytes + at, text.n_bytes - at}, chars)) {
            break;
        }
        text.n_bytes = at;
    }
    return text;
}

size_t sl_chat_find(struct sl_chat_text a, struct sl_chat_text b) {
    if (b.n_bytes == 0) {
        return 0;
    }
    const char *found = a.n_bytes >= b.n_bytes ? memmem(a.bytes, a.n_bytes, b.bytes, b.n_bytes) : NULL;
    return found ? (size_t)(found - a.bytes) : a.n_bytes + 1;
}
