/* SPDX-License-Identifier: MIT
 *
 * The main program of a fuzzer that is built without libFuzzer: runs the entry point once over each file named on
 * the command line. `make check` replays every corpus through it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifndef BERTH_LIBFUZZER
int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f) {
            perror(argv[i]);
            return 1;
        }
        static uint8_t data[4 << 20];
        size_t len = fread(data, 1, sizeof data, f);
        (void)fclose(f);
        /* an exact allocation, so that a read past the end is seen by the sanitizer */
        uint8_t *exact = malloc(len ? len : 1);
        if (!exact)
            return 1;
        for (size_t k = 0; k < len; k++)
            exact[k] = data[k];
        (void)LLVMFuzzerTestOneInput(exact, len);
        free(exact);
        n++;
    }
    printf("%d inputs\n", n);
    return n ? 0 : 1;
}
#endif
