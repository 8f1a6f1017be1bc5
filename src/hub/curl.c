/* SPDX-License-Identifier: MIT
 *
 * libcurl, opened at run time: a machine that only runs engines need not have it. Its header is used when berth is built, so that every call has its type; which functions are used says HUB_CURL_CALLS.
 */
#include "hub_int.h"

#include <dlfcn.h>
#include <errno.h>

static struct hub_curl calls;
static int opened; /* 0 or an error, after the first try */
static struct err opened_err;

/* A function pointer out of dlsym, without a cast that the language does not know. */
static bool symbol(void *lib, const char *name, void *ret)
{
    void *p = dlsym(lib, name);
    if (p)
        memcpy(ret, &p, sizeof p);
    return p != NULL;
}

static int open_library(struct err *err)
{
    void *lib = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    const char *missing = NULL;
    if (!lib)
        return err_set(err, -ENOTSUP, "fetching needs libcurl, which is not on this machine: install the package libcurl4 (on some systems libcurl4t64 or libcurl)");
#define HUB_CURL_LOAD(name) \
    if (!missing && !symbol(lib, "curl_" #name, &calls.name)) \
        missing = "curl_" #name;
    HUB_CURL_CALLS(HUB_CURL_LOAD)
#undef HUB_CURL_LOAD
    if (missing)
        return err_set(err, -ENOTSUP, "this machine's libcurl has no %s: 7.84 or newer is needed", missing);
    const curl_version_info_data *v = calls.version_info(CURLVERSION_NOW);
    if (v->version_num < 0x075400) /* 7.84.0: global_init may be called beside other threads */
        return err_set(err, -ENOTSUP, "this machine's libcurl is %s: 7.84 or newer is needed", v->version);
    return calls.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? 0 : err_set(err, -ENOTSUP, "libcurl cannot be initialised");
}

static void open_once(void)
{
    opened = open_library(&opened_err);
}

int hub_curl_open(const struct hub_curl **ret, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, open_once);
    if (opened < 0)
        return err_set(err, opened, "%s", opened_err.text);
    *ret = &calls;
    return 0;
}
