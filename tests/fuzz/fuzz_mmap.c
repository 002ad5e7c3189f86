// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: replaces mmap() of a file in fuzzers by a copy of exactly its size, so that the first byte that is read outside is detected. Of
 *          a real mapping, the rest of the last page can be read, and often the memory after it.
 *
 *     | poisoned | the file | no access |
 *     ^ page                ^ page
 *
 * Design: the copy ends at the end of a page, and the page after it is inaccessible: even a library without AddressSanitizer (the JSON
 *         parser) cannot read it. The rest of the first page, before the copy, is poisoned. engine/model/gguf/mapped_file.c is
 *         compiled with these in place of the calls (CMakeLists.txt).
 */
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES ((size_t)4096)

void *fuzz_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int fuzz_munmap(void *address, size_t bytes);
int fuzz_madvise(void *address, size_t bytes, int advice);

static size_t rounded(size_t bytes) {
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

void *fuzz_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (address != NULL || protection != PROT_READ || flags != MAP_PRIVATE) {
        abort(); // another kind of mapping than this one stands for
    }
    size_t pages = rounded(bytes);
    char *base = mmap(NULL, pages + PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *copy = base + (pages - bytes);
    if (base == MAP_FAILED || pread(fd, copy, bytes, offset) != (ssize_t)bytes ||
        mprotect(base + pages, PAGE_BYTES, PROT_NONE) != 0) {
        abort();
    }
    __asan_poison_memory_region(base, pages - bytes);
    return copy;
}

int fuzz_munmap(void *address, size_t bytes) {
    char *base = (char *)address + bytes - rounded(bytes);
    __asan_unpoison_memory_region(base, rounded(bytes));
    return munmap(base, rounded(bytes) + PAGE_BYTES);
}

// Aborts unless the range of the advice is inside a mapping.
int fuzz_madvise(void *address, size_t bytes, int advice) {
    (void)advice;
    if (__asan_region_is_poisoned(address, bytes) != NULL) {
        abort();
    }
    return 0;
}
