/* SPDX-License-Identifier: MIT
 *
 * Functions that this project does not use, made into compile errors. Forced into every file by the Makefile
 * (-include), after the system headers that declare them.
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BASE_BANNED(f) use_of_##f##_is_banned_see_banned_h

#undef strcpy
#define strcpy(d, s) BASE_BANNED(strcpy)
#undef strcat
#define strcat(d, s) BASE_BANNED(strcat)
#undef strncpy
#define strncpy(d, s, n) BASE_BANNED(strncpy)
#undef strncat
#define strncat(d, s, n) BASE_BANNED(strncat)
#undef sprintf
#define sprintf(...) BASE_BANNED(sprintf)
#undef vsprintf
#define vsprintf(...) BASE_BANNED(vsprintf)
#undef strtok
#define strtok(s, d) BASE_BANNED(strtok)
#undef gets
#define gets(s) BASE_BANNED(gets)
#undef atoi
#define atoi(s) BASE_BANNED(atoi)
#undef atol
#define atol(s) BASE_BANNED(atol)
#undef strtol
#define strtol(s, e, b) BASE_BANNED(strtol)
#undef localtime
#define localtime(t) BASE_BANNED(localtime)
#undef gmtime
#define gmtime(t) BASE_BANNED(gmtime)
#undef ctime
#define ctime(t) BASE_BANNED(ctime)
#undef mktemp
#define mktemp(t) BASE_BANNED(mktemp)
#undef alloca
#define alloca(n) BASE_BANNED(alloca)
#undef system
#define system(c) BASE_BANNED(system)
#undef popen
#define popen(c, m) BASE_BANNED(popen)
