// SPDX-License-Identifier: Apache-2.0
#include "gateway/routes.h"

#include <string.h>

#include "base/similar.h"

const struct sl_route *sl_route_find(const struct sl_route *routes, size_t n_routes, const char *path) {
    for (size_t i = 0; i < n_routes; i++) {
        size_t n = strlen(routes[i].path);
        bool is_prefix = routes[i].path[n - 1] == '/';
        if (is_prefix ? strncmp(path, routes[i].path, n) == 0 : strcmp(path, routes[i].path) == 0) {
            return &routes[i];
        }
    }
    return NULL;
}

// Returns true if `methods` ("GET, HEAD") has the method.
bool sl_route_is_begun(const struct sl_route *route, const char *method) {
    return route && route->begin_fn && strcmp(method, MHD_HTTP_METHOD_POST) == 0;
}

static bool takes(const char *methods, const char *method) {
    size_t n = strlen(method);
    for (const char *at = methods; *at; at += strspn(at, ", ")) {
        size_t n_name = strcspn(at, ", ");
        if (n_name == n && memcmp(at, method, n) == 0) {
            return true;
        }
        at += n_name;
    }
    return false;
}

enum sl_status sl_route_check(const struct sl_route *routes, size_t n_routes, const struct sl_route *route,
                              const char *path, const char *method, struct sl_refusal *refusal) {
    if (!route) {
        struct sl_similar meant = {.word = path};
        for (size_t i = 0; i < n_routes; i++) {
            sl_similar_offer(&meant, routes[i].path);
        }
        sl_refuse(refusal, 404, "there is nothing at %.200s%s%s", path, meant.name ? ": did you mean " : "",
                  meant.name ? meant.name : "");
        return SL_ERR_NOT_FOUND;
    }
    if (!takes(route->methods, method)) {
        sl_refuse(refusal, 405, "%.200s does not take %.20s", path, method);
        refusal->allow = route->methods;
        return SL_ERR_UNSUPPORTED;
    }
    return SL_OK;
}
