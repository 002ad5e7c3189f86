// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for pages of a package index. For any page, a file is either missing, with a reason, or it has an address that
 *          is text and a valid digest or none.
 * Design: the first byte chooses between JSON and HTML; the page is in memory of its exact size, without a final zero.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/pull/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sl_index_file file;
    struct sl_error err = {0};
    if (size == 0) {
        return 0;
    }
    char *page = malloc(size); // one byte more than the page: of none, too
    require(page != NULL);
    memcpy(page, data + 1, size - 1);
    char *exact = realloc(page, size - 1 ? size - 1 : 1);
    require(exact != NULL);
    enum sl_status status = sl_index_find(exact, size - 1, data[0] & 1, "a-1.whl", &file, &err);
    if (status == SL_OK) {
        require(strlen(file.url) < sizeof file.url && (data[0] & 1 || strstr(file.url, "a-1.whl")));
        require(file.sha256[0] == '\0' || strspn(file.sha256, "0123456789abcdef") == SL_SHA256_HEX_BYTES - 1);
    } else {
        require((status == SL_ERR_NOT_FOUND || status == SL_ERR_INVALID) && err.text[0] != '\0');
    }
    free(exact);
    return 0;
}
