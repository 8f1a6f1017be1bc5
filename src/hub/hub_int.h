/* SPDX-License-Identifier: MIT
 *
 * Shared inside hub only. Three layers: curl.c opens the library; wire.c sends one request after the other, follows redirects by hand and runs the network's thread; fetch.c with its parts makes files of many requests. parse.c reads
 * what servers say and knows nothing else.
 */
#pragma once

#include "hub.h"

#include <pthread.h>

#define CURL_DISABLE_TYPECHECK /* its macros are for calls by name */
#include <curl/curl.h>

/* ---- the library (curl.c) --------------------------------------------------------------------------------------------- */

/* What is used of libcurl, by pointers. X(name): its function curl_NAME. */
#define HUB_CURL_CALLS(X) \
    X(global_init) X(version_info) X(easy_init) X(easy_cleanup) X(easy_setopt) X(easy_getinfo) X(easy_reset) X(easy_pause) X(easy_strerror) X(multi_init) X(multi_cleanup) X(multi_add_handle) X(multi_remove_handle) \
    X(multi_perform) X(multi_poll) X(multi_wakeup) X(multi_info_read) X(multi_setopt) X(multi_strerror) X(slist_append) X(slist_free_all) X(getdate) X(url) X(url_cleanup) X(url_set) X(url_get) X(free)
struct hub_curl {
#define HUB_CURL_MEMBER(name) __typeof__(&curl_##name) name;
    HUB_CURL_CALLS(HUB_CURL_MEMBER)
#undef HUB_CURL_MEMBER
};
/* The library, opened once in a process and never closed. -ENOTSUP. */
int hub_curl_open(const struct hub_curl **ret, struct err *err) BASE_MUST_USE;
