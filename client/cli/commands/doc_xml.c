// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/doc_xml.h"

#include <stdlib.h>
#include <string.h>

static const char *find(const char *at, const char *end, const char *text) {
    const char *found = memmem(at, (size_t)(end - at), text, strlen(text));
    return found ? found : end;
}

static bool begins(const char *at, const char *end, const char *with) {
    return (size_t)(end - at) >= strlen(with) && memcmp(at, with, strlen(with)) == 0;
}

// Takes a tag from its first byte after '<' to its '>', which may also stand in an attribute.
static void take_tag(struct sl_xml *xml, struct sl_xml_token *token) {
    const char *at = xml->at, *end = xml->end;
    bool closes = at < end && *at == '/';
    at += closes;
    token->name = at;
    while (at < end && !memchr(" \t\r\n/>", *at, 6)) {
        at++;
        token->name = at[-1] == ':' ? at : token->name;
    }
    token->n_name = (size_t)(at - token->name);
    token->attributes = at;
    for (char quote = '\0'; at < end && (*at != '>' || quote); at++) {
        quote = quote ? (*at == quote ? '\0' : quote) : (*at == '"' || *at == '\'' ? *at : '\0');
    }
    token->n_attributes = (size_t)(at - token->attributes);
    token->kind = closes ? SL_XML_CLOSE : at > token->attributes && at[-1] == '/' ? SL_XML_EMPTY : SL_XML_OPEN;
    xml->at = at < end ? at + 1 : end;
}

bool sl_xml_next(struct sl_xml *xml, struct sl_xml_token *token_out) {
    *token_out = (struct sl_xml_token){.kind = SL_XML_TEXT};
    while (xml->at < xml->end) {
        const char *at = xml->at, *end = xml->end;
        if (*at != '<' || begins(at, end, "<![CDATA[")) {
            token_out->is_raw = *at == '<';
            token_out->name = at + (token_out->is_raw ? strlen("<![CDATA[") : 0);
            const char *close = token_out->is_raw ? find(at, end, "]]>") : find(at, end, "<");
            close = close < token_out->name ? end : close; // a section that ends with the file
            token_out->n_name = (size_t)(close - token_out->name);
            xml->at = token_out->is_raw && close < end ? close + strlen("]]>") : close;
            return true;
        }
        bool is_comment = begins(at, end, "<!--"), is_instruction = begins(at, end, "<?");
        if (!is_comment && !is_instruction && !begins(at, end, "<!")) {
            xml->at++;
            take_tag(xml, token_out);
            return true;
        }
        const char *last = is_comment ? "-->" : is_instruction ? "?>" : ">";
        at = find(at, end, last);
        xml->at = at < end ? at + strlen(last) : end;
    }
    return false;
}

bool sl_xml_is(const struct sl_xml_token *token, const char *name) {
    return token->n_name == strlen(name) && memcmp(token->name, name, token->n_name) == 0;
}

bool sl_xml_attribute(const struct sl_xml_token *token, const char *name, char *value_out, size_t size) {
    const char *at = token->attributes, *end = at + token->n_attributes;
    size_t n = strlen(name);
    for (at = find(at, end, name); at < end; at = find(at + 1, end, name)) {
        const char *value = at + n + 2;
        if (!memchr(" \t\r\n", at[-1], 4) || value > end || at[n] != '=' || !memchr("\"'", at[n + 1], 2)) {
            continue;
        }
        const char *close = memchr(value, value[-1], (size_t)(end - value));
        if (close && (size_t)(close - value) < size) {
            memcpy(value_out, value, (size_t)(close - value));
            value_out[close - value] = '\0';
            return true;
        }
    }
    return false;
}

static void write_utf8(unsigned long code, FILE *out) {
    if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        code = 0xfffd; // no character
    }
    int n = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3; // bytes after the first
    fputc((int)(n == 0 ? code : (0xff00 >> (n + 1) & 0xff) | code >> (6 * n)), out);
    while (n-- > 0) {
        fputc((int)(0x80 | (code >> (6 * n) & 63)), out);
    }
}

void sl_xml_write(const struct sl_xml_token *text, FILE *out) {
    static const struct {
        const char *name;
        char character;
    } entities[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    for (const char *at = text->name, *end = at + text->n_name; at < end; at++) {
        const char *close = *at == '&' && !text->is_raw ? memchr(at, ';', (size_t)(end - at)) : NULL;
        char name[12] = "";
        if (!close || (size_t)(close - at) > sizeof name - 1) {
            fputc(*at, out);
            continue;
        }
        memcpy(name, at + 1, (size_t)(close - at - 1));
        if (name[0] == '#') {
            write_utf8(name[1] == 'x' ? strtoul(name + 2, NULL, 16) : strtoul(name + 1, NULL, 10), out);
        }
        for (size_t i = 0; i < sizeof entities / sizeof *entities; i++) {
            if (strcmp(name, entities[i].name) == 0) {
                fputc(entities[i].character, out);
            }
        }
        at = close;
    }
}
