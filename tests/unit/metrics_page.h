// SPDX-License-Identifier: Apache-2.0
// Purpose: a page of metrics in memory, for tests; after <cmocka.h>.
#pragma once

#include <stdio.h>
#include <stdlib.h>

struct page {
    char *text;
    size_t n;
    FILE *file;
};

static inline FILE *page_open(struct page *page) {
    page->file = open_memstream(&page->text, &page->n);
    assert_non_null(page->file);
    return page->file;
}

// Compares and frees.
static inline void assert_page(struct page *page, const char *wanted) {
    assert_int_equal(fclose(page->file), 0);
    assert_string_equal(page->text, wanted);
    free(page->text);
}
