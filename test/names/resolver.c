/* SPDX-License-Identifier: MIT
 *
 * A resolver for tests, preloaded into a program: slow.invalid is looked up for as long as the file named by NAMES_HOLD exists and is then 127.0.0.1; two.invalid is 127.0.0.9 and then 127.0.0.1; nobody.invalid is
 * not known. All other names are the C library's. Nothing but C, no sanitizers.
 */
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int resolver(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **ret);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    resolver *real = (resolver *)dlsym(RTLD_NEXT, "getaddrinfo");
    if (node && strcmp(node, "nobody.invalid") == 0)
        return EAI_NONAME;
    if (node && strcmp(node, "slow.invalid") == 0) {
        const char *file = getenv("NAMES_HOLD");
        while (file && access(file, F_OK) == 0)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        return real("127.0.0.1", service, hints, ret);
    }
    if (!node || strcmp(node, "two.invalid") != 0)
        return real(node, service, hints, ret);
    int code = real("127.0.0.9", service, hints, ret);
    return code ? code : real("127.0.0.1", service, hints, &(*ret)->ai_next);
}
