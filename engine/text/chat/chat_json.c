// SPDX-License-Identifier: Apache-2.0
// Purpose: the filter tojson: Python's json.dumps(value, ensure_ascii=False, indent=...). See chat_internal.h.
#include <math.h>
#include <stdio.h>

#include "engine/text/chat/chat_internal.h"

struct writer {
    struct sl_chat_work *work;
    struct sl_chat_buffer out;
    int indent; // blanks per level; -1: everything on one line
};

static void put(struct writer *writer, const char *text) {
    sl_chat_append(writer->work, &writer->out, sl_chat_text_of(text));
}

static void put_line(struct writer *writer, int level) {
    if (writer->indent >= 0) {
        put(writer, "\n");
        for (int i = 0; i < writer->indent * level; i++) {
            put(writer, " ");
        }
    }
}

static void put_string(struct writer *writer, struct sl_chat_text text) {
    put(writer, "\"");
    size_t plain = 0; // leading bytes that need no escape
    for (size_t i = 0; i <= text.n_bytes; i++) {
        unsigned char c = i < text.n_bytes ? (unsigned char)text.bytes[i] : '"';
        if (c != '"' && c != '\\' && c >= 0x20) {
            continue;
        }
        sl_chat_append(writer->work, &writer->out, (struct sl_chat_text){text.bytes + plain, i - plain});
        plain = i + 1;
        if (i < text.n_bytes) {
            static const char letters[] = "\"\"\\\\\nn\rr\tt\bb\ff";
            char escape[8];
            const char *letter = letters;
            while (*letter && (unsigned char)*letter != c) {
                letter += 2;
            }
            snprintf(escape, sizeof(escape), *letter ? "\\%c" : "\\u%04x", *letter ? letter[1] : c);
            put(writer, escape);
        }
    }
    put(writer, "\"");
}

static void put_value(struct writer *writer, struct sl_chat_value value, int level);

static void put_separator(struct writer *writer, size_t i, int level) {
    if (i > 0) {
        put(writer, writer->indent >= 0 ? "," : ", ");
    }
    put_line(writer, level);
}

static void put_list(struct writer *writer, const struct sl_chat_list *list, int level) {
    put(writer, "[");
    for (size_t i = 0; i < list->n && writer->work->status == SL_OK; i++) {
        put_separator(writer, i, level + 1);
        put_value(writer, list->items[i], level + 1);
    }
    if (list->n > 0) {
        put_line(writer, level);
    }
    put(writer, "]");
}

static void put_dict(struct writer *writer, const struct sl_chat_dict *dict, int level) {
    put(writer, "{");
    for (size_t i = 0; i < dict->n && writer->work->status == SL_OK; i++) {
        put_separator(writer, i, level + 1);
        put_string(writer, dict->pairs[i].key);
        put(writer, ": ");
        put_value(writer, dict->pairs[i].value, level + 1);
    }
    if (dict->n > 0) {
        put_line(writer, level);
    }
    put(writer, "}");
}

static void put_value(struct writer *writer, struct sl_chat_value value, int level) {
    if (level > SL_CHAT_MAX_DEPTH) {
        sl_chat_fail(writer->work, SL_ERR_EXHAUSTED, "tojson of values nested deeper than %d", SL_CHAT_MAX_DEPTH);
        return;
    }
    switch (value.kind) {
    case SL_CHAT_NONE:
        put(writer, "null");
        break;
    case SL_CHAT_BOOL:
        put(writer, value.truth ? "true" : "false");
        break;
    case SL_CHAT_FLOAT:
        if (!isfinite(value.real)) {
            put(writer, isnan(value.real) ? "NaN" : value.real > 0 ? "Infinity" : "-Infinity");
            break;
        }
        sl_chat_append(writer->work, &writer->out, sl_chat_str(writer->work, value));
        break;
    case SL_CHAT_INT:
        sl_chat_append(writer->work, &writer->out, sl_chat_str(writer->work, value));
        break;
    case SL_CHAT_STRING:
        put_string(writer, value.text);
        break;
    case SL_CHAT_LIST:
    case SL_CHAT_TUPLE:
        put_list(writer, value.list, level);
        break;
    case SL_CHAT_DICT:
        put_dict(writer, value.dict, level);
        break;
    default:
        sl_chat_fail(writer->work, SL_ERR_INVALID, "tojson of %s", sl_chat_kind_name(value.kind));
    }
}

struct sl_chat_text sl_chat_to_json(struct sl_chat_work *work, struct sl_chat_value value, int indent) {
    struct writer writer = {.work = work, .indent = indent};
    put_value(&writer, value, 0);
    return (struct sl_chat_text){writer.out.bytes, writer.out.n_bytes};
}
