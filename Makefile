# SPDX-License-Identifier: MIT
#
# make            build/berth and build/mkmodel
# make up         install what building needs, build, bring the demo fleet up, ask it a question
# make down       stop the demo fleet
# make check      install what testing needs, run every test
# make help       everything else
#
# A module is a folder of src/: its .c files are found, not listed. Other builds of the same tree live beside the first:
# make BUILD=build/asan SAN=address,undefined.

BUILD  ?= build
PREFIX ?= /usr/local
CC     ?= cc
CFLAGS ?= -O2 -g
SAN    ?=
WERROR ?=

# The loader looks a symbol up in one library after the other, in this order, and nearly all of it is what the first two look up in themselves.
PKGS   := libcrypto sqlite3 libssl libuv libllhttp yyjson yaml-0.1
WARN   := -Wall -Wextra -Wmissing-prototypes -Wstrict-prototypes -Wshadow -Wvla -Wformat=2 -Wconversion -Wno-sign-conversion \
          -Wpointer-arith -Wwrite-strings -Wundef -Wimplicit-fallthrough
VERSION := 0.1.0

ifneq ($(SAN),)
SANFLAGS := -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
endif
# With clang: fuzzers that search instead of replaying.
ifneq ($(LIBFUZZER),)
SANFLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
FUZZFLAGS := -DBERTH_LIBFUZZER -fsanitize=fuzzer
endif
ifneq ($(WERROR),)
WARN += -Werror
endif

# Packages are looked up when something is compiled, so that `make deps` works on a bare machine.
PKG_CFLAGS = $(eval PKG_CFLAGS := $$(shell pkg-config --cflags $(PKGS)))$(PKG_CFLAGS)
PKG_LIBS   = $(eval PKG_LIBS := $$(shell pkg-config --libs $(PKGS)))$(PKG_LIBS)

FLAGS = -std=c17 -D_GNU_SOURCE -DBERTH_VERSION='"$(VERSION)"' -Isrc $(PKG_CFLAGS) $(WARN) -fstack-protector-strong -D_FILE_OFFSET_BITS=64 \
        -include src/base/banned.h -MMD -MP $(SANFLAGS) $(CPPFLAGS) $(CFLAGS)

# While one module is being written, MODULES='base os conf' builds those alone.
MODULES ?= *
SRC   := $(sort $(foreach m,$(MODULES),$(wildcard src/$(m)/*.c)))
MAIN  := src/cmd/main.c
OBJ   := $(SRC:%.c=$(BUILD)/obj/%.o)
LIB   := $(BUILD)/libberth.a
UNIT  := $(patsubst test/unit/%.c,$(BUILD)/test/%,$(sort $(wildcard test/unit/test_*.c)))
FUZZ  := $(patsubst test/fuzz/%.c,$(BUILD)/fuzz/%,$(sort $(wildcard test/fuzz/fuzz_*.c)))
AIDS  := $(patsubst test/aids/%.c,$(BUILD)/aids/%,$(sort $(wildcard test/aids/*.c)))

.DEFAULT_GOAL := all
.PHONY: all help deps deps-check up down check check-fast check-fit check-hosts check-long check-races lint asan tsan fuzz fuzz-long analyze coverage headers install man clean compile_commands.json test-programs races-programs
.DELETE_ON_ERROR:

all: $(BUILD)/berth $(BUILD)/mkmodel

help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile
	@echo 'asan tsan       build with sanitizers into build/asan, build/tsan'
	@echo 'check-fast      unit tests, fuzz corpora and command line, no engine'
	@echo 'check-fit       the whole grid of predictions against the installed engine (20 minutes)'
	@echo 'check-long      transfers of 2 GiB over a line with faults (5 GB in memory or on disk; 3 minutes)'
	@echo 'check-hosts     deploys to two real systemd hosts in containers, over ssh (root; 10 minutes)'
	@echo 'check-races     everything that a fleet can be asked at once, under ThreadSanitizer and AddressSanitizer (5 minutes)'
	@echo 'lint            layers, banned words, complexity, shellcheck, warnings as errors with gcc and clang'
	@echo 'analyze         gcc -fanalyzer and clang-tidy'
	@echo 'fuzz            build the fuzzers (libFuzzer) and run each for FUZZ_SECONDS=30; fuzz-long: for half an hour'
	@echo 'coverage        line coverage of the unit tests'
	@echo 'headers         the models of examples/boxes as hollow files, into headers/'
	@echo 'install         into DESTDIR/PREFIX (default /usr/local)'
	@echo 'compile_commands.json   for editors'

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -c -o $@ $<

# The page's files are part of this object.
$(BUILD)/obj/src/up/up_web.o: $(wildcard web/*)

$(LIB): $(filter-out $(BUILD)/obj/$(MAIN:.c=.o),$(OBJ))
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/berth: $(BUILD)/obj/$(MAIN:.c=.o) $(LIB)
	$(CC) $(SANFLAGS) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)

$(BUILD)/mkmodel: $(BUILD)/obj/tools/mkmodel.o $(LIB)
	$(CC) $(SANFLAGS) $(LDFLAGS) -o $@ $^ $(PKG_LIBS) -lm

$(BUILD)/test/%: test/unit/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -Wno-missing-prototypes -o $@ $< $(LIB) $(SANFLAGS) $(PKG_LIBS) -lcmocka

# Without libFuzzer a fuzzer replays the files named on its command line.
$(BUILD)/fuzz/%: test/fuzz/%.c test/fuzz/replay.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -Wno-missing-prototypes $(FUZZFLAGS) -o $@ $(filter %.c,$^) $(LIB) $(SANFLAGS) $(PKG_LIBS)

$(BUILD)/aids/%: test/aids/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -Wno-missing-prototypes -o $@ $< $(LIB) $(SANFLAGS) $(PKG_LIBS)

# The observer is preloaded into the engine, whose libc is another: nothing but C, no sanitizers.
$(BUILD)/fit-observer.so: test/fit/observer.c
	@mkdir -p $(@D)
	$(CC) -std=c17 -D_GNU_SOURCE $(WARN) -Wno-missing-prototypes -O2 -fPIC -shared -o $@ $<

$(BUILD)/crash-recorder.so: test/crash/recorder.c
	@mkdir -p $(@D)
	$(CC) -std=c17 -D_GNU_SOURCE $(WARN) -Wno-missing-prototypes -O2 -fPIC -shared -o $@ $<

$(BUILD)/names.so: test/names/resolver.c
	@mkdir -p $(@D)
	$(CC) -std=c17 -D_GNU_SOURCE $(WARN) -Wno-missing-prototypes -O2 -fPIC -shared -o $@ $<

$(BUILD)/clock.so: test/clock/jump.c
	@mkdir -p $(@D)
	$(CC) -std=c17 -D_GNU_SOURCE $(WARN) -Wno-missing-prototypes -O2 -fPIC -shared -o $@ $<

$(BUILD)/open-counter.so: test/check/opens.c
	@mkdir -p $(@D)
	$(CC) -std=c17 -D_GNU_SOURCE $(WARN) -Wno-missing-prototypes -O2 -fPIC -shared -o $@ $<

$(BUILD)/fitmodels: $(BUILD)/aids/fitmodels
	@cp $< $@

test-programs: all $(UNIT) $(FUZZ) $(AIDS) $(BUILD)/fit-observer.so $(BUILD)/crash-recorder.so $(BUILD)/names.so $(BUILD)/clock.so $(BUILD)/open-counter.so

# What threads work in.
RACES := net net_resolve net_tls hub proxy_file proxy_join proxy_lanes proxy_link proxy_worker
races-programs: $(BUILD)/berth $(BUILD)/aids/fake_engine $(BUILD)/aids/fake_hub $(RACES:%=$(BUILD)/test/test_%)

deps:
	@tools/deps build
deps-check:
	@tools/deps check

up: deps
	@$(MAKE) --no-print-directory -j2 all
	@tools/demo up
down:
	@tools/demo down

check: deps-check
	@$(MAKE) --no-print-directory -j2 test-programs
	@$(MAKE) --no-print-directory -j2 BUILD=build/asan SAN=address,undefined test-programs
	@$(MAKE) --no-print-directory -j2 BUILD=build/tsan SAN=thread CFLAGS='-O1 -g' races-programs
	@test/run $(GROUPS)

check-fit: deps-check
	@$(MAKE) --no-print-directory -j2 all $(BUILD)/fit-observer.so $(BUILD)/fitmodels $(BUILD)/aids/fitpredict
	@test/fit/run --all; rc=$$?; test/fit/run --measure && exit $$rc

check-hosts: deps-check
	@$(MAKE) --no-print-directory -j2 all $(AIDS)
	@test/run hosts

check-long: deps-check
	@$(MAKE) --no-print-directory -j2 all $(AIDS)
	@test/run long

check-races: deps-check
	@$(MAKE) --no-print-directory -j2 BUILD=build/tsan SAN=thread CFLAGS='-O1 -g' races-programs
	@$(MAKE) --no-print-directory -j2 BUILD=build/asan SAN=address,undefined races-programs
	@test/run races

check-fast:
	@$(MAKE) --no-print-directory -j2 test-programs
	@test/run unit fuzz cli

lint:
	@tools/lint

asan:
	@$(MAKE) --no-print-directory BUILD=build/asan SAN=address,undefined test-programs
tsan:
	@$(MAKE) --no-print-directory BUILD=build/tsan SAN=thread test-programs

analyze:
	@tools/analyze

# What `make check` runs; see test/run.
GROUPS ?= all

FUZZ_SECONDS ?= 30
fuzz:
	@tools/fuzz $(FUZZ_SECONDS)
fuzz-long:
	@tools/fuzz 1800

coverage:
	@$(MAKE) --no-print-directory -j2 BUILD=build/cov CFLAGS='-O0 -g --coverage' LDFLAGS=--coverage test-programs
	@BUILD=build/cov test/run unit fuzz cli
	gcovr --root . --object-directory build/cov --filter src/ --print-summary --html-details build/cov/index.html

# Those of tools/boxes: true headers, holes for the weights.
headers: $(BUILD)/aids/fitmodels
	@mkdir -p headers
	@$(BUILD)/aids/fitmodels --out headers qwen38-27b qwen38-27b-dflash2 qwen38-flash-next gemma4-12b gemma4-12b-assistant qwen35-35b-a3b

man: $(BUILD)/berth
	@tools/man $(BUILD)/berth $(BUILD)/man

install: all man
	install -D -m 755 $(BUILD)/berth $(DESTDIR)$(PREFIX)/bin/berth
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/doc/berth
	install -m 644 $(BUILD)/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 README.md LICENSE $(DESTDIR)$(PREFIX)/share/doc/berth/
	install -d $(DESTDIR)$(PREFIX)/share/doc/berth/docs $(DESTDIR)$(PREFIX)/share/doc/berth/examples/boxes
	install -m 644 docs/*.md docs/*.svg $(DESTDIR)$(PREFIX)/share/doc/berth/docs/
	install -m 644 $(filter-out examples/demo.yaml,$(wildcard examples/*.yaml)) $(DESTDIR)$(PREFIX)/share/doc/berth/examples/
	install -m 644 examples/boxes/*.yaml $(DESTDIR)$(PREFIX)/share/doc/berth/examples/boxes/

compile_commands.json:
	@$(MAKE) --no-print-directory -Bn all | python3 tools/compdb > $@

clean:
	rm -rf build

-include $(wildcard $(BUILD)/obj/src/*/*.d $(BUILD)/obj/tools/*.d $(BUILD)/test/*.d $(BUILD)/fuzz/*.d $(BUILD)/aids/*.d)
