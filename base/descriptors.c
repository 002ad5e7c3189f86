// SPDX-License-Identifier: Apache-2.0
#include "base/descriptors.h"

#include <limits.h>
#include <sys/resource.h>

void sl_descriptors_raise(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        // The new soft limit is not above the hard one, so this cannot fail; 1,024 would do as well
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

int sl_descriptors_limit(void) {
    struct rlimit files;
    return getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < INT_MAX ? (int)files.rlim_cur : INT_MAX;
}

int sl_descriptors_for_clients(void) {
    const int limit = sl_descriptors_limit();
    return limit - limit / 4;
}
