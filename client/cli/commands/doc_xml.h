// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: takes the tags and texts of XML apart, as far as the text of an office file needs it.
 *
 * Design: no tree, no namespaces, no entities of a document's own, and no check that the XML is well-formed: what is wrong
 *         shows as a text that is wrong.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct sl_xml {
    const char *at, *end;
};

struct sl_xml_token {
    enum { SL_XML_TEXT, SL_XML_OPEN, SL_XML_CLOSE, SL_XML_EMPTY } kind;
    bool is_raw;      // a text without entities (CDATA)
    const char *name; // of a tag, after its namespace; or the text
    size_t n_name;
    const char *attributes; // up to the tag's end
    size_t n_attributes;
};

// Takes the next token; false: there are no more. It points into the XML.
bool sl_xml_next(struct sl_xml *xml, struct sl_xml_token *token_out);
bool sl_xml_is(const struct sl_xml_token *token, const char *name);
// Copies an attribute of a tag, by its name with the namespace; false: it has none that fits.
bool sl_xml_attribute(const struct sl_xml_token *token, const char *name, char *value_out, size_t size);
// Writes a text with its entities as UTF-8.
void sl_xml_write(const struct sl_xml_token *text, FILE *out);
