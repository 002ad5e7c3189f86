// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: answers questions about a descriptor set from its bytes, as far as reflection needs it.
 *
 * Design: the six message types of interest differ only in which field holds what, so one table describes them, and one
 *         recursive function follows a dotted name through it. Nothing is allocated; every read is bounded by its span.
 *         The depth of the recursion is bounded by the dots of the name, and by MAX_DEPTH.
 */
#include "net/rpc/standard/rpc_descriptors.h"

#include <string.h>

enum { MAX_DEPTH = 32 };

static bool same(struct sl_rpc_span a, struct sl_rpc_span b) {
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

// Returns the first length-delimited field of this number; empty if there is none.
static struct sl_rpc_span find_field(struct sl_rpc_span message, uint64_t number) {
    struct sl_rpc_field field;
    bool bad = false;
    while (sl_rpc_next_field(&message, &field, &bad)) {
        if (field.number == number) {
            return field.value;
        }
    }
    return (struct sl_rpc_span){NULL, 0};
}

// ---- names ---------------------------------------------------------------------------------------------------------

enum kind { FILE_KIND, MESSAGE, ENUM, SERVICE, LEAF, N_KINDS }; // LEAF: fields, enum values, methods, extensions

enum { NAME_FIELD = 1, PACKAGE_FIELD = 2, DEPENDENCY_FIELD = 3, MAX_FIELD = 8 };

// children[kind][number] is the kind of thing that field `number` in a descriptor of that kind defines (0: nothing).
static const enum kind children[N_KINDS][MAX_FIELD + 1] = {
    [FILE_KIND] = {[4] = MESSAGE, [5] = ENUM, [6] = SERVICE, [7] = LEAF},
    [MESSAGE] = {[2] = LEAF, [3] = MESSAGE, [4] = ENUM, [6] = LEAF, [8] = LEAF},
    [ENUM] = {[2] = LEAF},
    [SERVICE] = {[2] = LEAF},
};

static bool defines(struct sl_rpc_span descriptor, enum kind kind, struct sl_rpc_span path, int depth);

// Returns true if this child defines the path. Its own name is the first part; the values of an enum are its siblings,
// not its children.
static bool child_defines(struct sl_rpc_span child, enum kind kind, struct sl_rpc_span path, int depth) {
    const struct sl_rpc_span name = find_field(child, NAME_FIELD);
    if (same(name, path)) {
        return true;
    }
    if (kind == ENUM) {
        return defines(child, kind, path, depth + 1);
    }
    if (name.bytes == 0 || path.bytes <= name.bytes || path.data[name.bytes] != '.' ||
        memcmp(path.data, name.data, name.bytes) != 0) {
        return false;
    }
    const struct sl_rpc_span rest = {path.data + name.bytes + 1, path.bytes - name.bytes - 1};
    return defines(child, kind, rest, depth + 1);
}

static bool defines(struct sl_rpc_span descriptor, enum kind kind, struct sl_rpc_span path, int depth) {
    struct sl_rpc_field field;
    bool bad = false;
    while (depth < MAX_DEPTH && sl_rpc_next_field(&descriptor, &field, &bad)) {
        const enum kind child = field.number <= MAX_FIELD ? children[kind][field.number] : FILE_KIND;
        if (child != FILE_KIND && child_defines(field.value, child, path, depth)) {
            return true;
        }
    }
    return false;
}

// ---- files ---------------------------------------------------------------------------------------------------------

enum sl_status sl_rpc_files_parse(const uint8_t *set, size_t bytes, struct sl_rpc_files *files_out,
                                  struct sl_error *err) {
    struct sl_rpc_span at = {set, bytes};
    struct sl_rpc_field field;
    bool bad = false;
    size_t n_files = 0;
    while (sl_rpc_next_field(&at, &field, &bad)) {
        if (field.number != 1) {
            continue;
        }
        SL_FAIL_IF(n_files == SL_RPC_MAX_FILES, err, SL_ERR_INVALID, "the descriptor set has more than %d files",
                   SL_RPC_MAX_FILES);
        struct sl_rpc_span inside = field.value;
        struct sl_rpc_field unused;
        while (sl_rpc_next_field(&inside, &unused, &bad)) {
        }
        files_out->file[n_files] = field.value;
        files_out->name[n_files] = find_field(field.value, NAME_FIELD);
        bad = bad || files_out->name[n_files].bytes == 0;
        n_files++;
        if (bad) {
            break;
        }
    }
    SL_FAIL_IF(bad, err, SL_ERR_INVALID, "the descriptor set is malformed after %zu files", n_files);
    files_out->n_files = n_files;
    return SL_OK;
}

size_t sl_rpc_files_named(const struct sl_rpc_files *files, struct sl_rpc_span name) {
    size_t i = 0;
    while (i < files->n_files && !same(files->name[i], name)) {
        i++;
    }
    return i;
}

size_t sl_rpc_files_defining(const struct sl_rpc_files *files, const char *symbol) {
    const struct sl_rpc_span path = {(const uint8_t *)symbol, strlen(symbol)};
    for (size_t i = 0; i < files->n_files; i++) {
        const struct sl_rpc_span package = find_field(files->file[i], PACKAGE_FIELD);
        struct sl_rpc_span rest = path;
        if (package.bytes) {
            if (path.bytes <= package.bytes || path.data[package.bytes] != '.' ||
                memcmp(path.data, package.data, package.bytes) != 0) {
                continue;
            }
            rest = (struct sl_rpc_span){path.data + package.bytes + 1, path.bytes - package.bytes - 1};
        }
        if (defines(files->file[i], FILE_KIND, rest, 0)) {
            return i;
        }
    }
    return files->n_files;
}

size_t sl_rpc_files_closure(const struct sl_rpc_files *files, size_t file, size_t indices[SL_RPC_MAX_FILES]) {
    bool seen[SL_RPC_MAX_FILES] = {false};
    size_t n_found = 0;
    seen[file] = true;
    indices[n_found++] = file;
    for (size_t done = 0; done < n_found; done++) { // breadth first: indices is also the queue
        struct sl_rpc_span at = files->file[indices[done]];
        struct sl_rpc_field field;
        bool bad = false;
        while (sl_rpc_next_field(&at, &field, &bad)) {
            const size_t import =
                field.number == DEPENDENCY_FIELD ? sl_rpc_files_named(files, field.value) : files->n_files;
            if (import < files->n_files && !seen[import]) {
                seen[import] = true;
                indices[n_found++] = import;
            }
        }
    }
    return n_found;
}
