// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for the XML of office files: every token lies in it, and comes after the one before; attributes fit, and texts
 *          become as many bytes at most.
 * Design: the XML is in memory of its exact size.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/commands/doc_xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static void check_text(const struct sl_xml_token *token) {
    char *written = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&written, &n);
    require(out != NULL);
    sl_xml_write(token, out);
    fclose(out);
    require(n <= token->n_name && (!token->is_raw || n == token->n_name));
    free(written);
}

static void check_tag(const struct sl_xml_token *token, const char *end) {
    char value[8];
    require(token->attributes + token->n_attributes <= end);
    if (sl_xml_attribute(token, "r:id", value, sizeof value)) {
        require(strlen(value) < sizeof value);
    }
    (void)sl_xml_is(token, "sldId");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *bytes = malloc(size ? size : 1);
    require(bytes != NULL);
    memcpy(bytes, data, size);
    struct sl_xml xml = {bytes, bytes + size};
    struct sl_xml_token token;
    for (const char *before = xml.at; sl_xml_next(&xml, &token); before = xml.at) {
        require(xml.at > before && xml.at <= xml.end);
        require(token.name >= before && token.name + token.n_name <= xml.end);
        if (token.kind == SL_XML_TEXT) {
            check_text(&token);
        } else {
            check_tag(&token, xml.end);
        }
    }
    free(bytes);
    return 0;
}
