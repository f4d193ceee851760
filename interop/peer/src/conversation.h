/* conversation.h: how the peers are controlled, by standard input and output.
 *
 * A command is a line: a word and key=value pairs. Numbers are decimal or 0x hexadecimal. The
 * answer is any number of lines and then "ok ..." or "err ...".
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE = 2048, WORDS = 64 };

static char line[LINE], *keys[WORDS], *values[WORDS];
static int words;

/* text and num return the value of a key in the current line, or def. */
static inline const char *text(const char *key, const char *def)
{
	for (int i = 0; i < words; i++)
		if (!strcmp(keys[i], key)) return values[i];
	return def;
}

static inline uint64_t num(const char *key, uint64_t def)
{
	const char *v = text(key, NULL);
	return v ? strtoull(v, NULL, 0) : def;
}

static inline void ok(void) { printf("ok\n"); }
static inline void refuse(const char *why) { printf("err %s\n", why); }

/* fail answers err with the reason in errno. It returns -1. */
static inline int fail(const char *what)
{
	printf("err %s: %s\n", what, strerror(errno));
	return -1;
}

/* now returns microseconds since an arbitrary time. */
static inline int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ll + t.tv_nsec / 1000;
}

/* pattern returns the byte at offset i of a block with that seed, as package peer does. */
static inline uint8_t pattern(uint32_t seed, uint32_t i)
{
	uint32_t x = (seed * 0x10001u + i) * 0x9e3779b1u;
	return (x ^ x >> 13) * 0x85ebca6bu >> 24;
}

struct command {
	const char *name;
	void (*run)(void);
};

static void obey(const char *word, const struct command *commands, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(word, commands[i].name)) { commands[i].run(); return; }
	refuse("no such command");
}

/* converse executes commands until standard input ends. */
static int converse(const struct command *commands, size_t n)
{
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	while (fgets(line, sizeof line, stdin)) {
		char *word = strtok(line, " \n"), *w;
		if (!word) continue;
		for (words = 0; words < WORDS && (w = strtok(NULL, " \n"));) {
			char *eq = strchr(w, '=');
			if (!eq) continue;
			*eq = 0;
			keys[words] = w;
			values[words++] = eq + 1;
		}
		obey(word, commands, n);
		fflush(stdout);
	}
	return 0;
}

#define CONVERSE(commands) converse(commands, sizeof commands / sizeof *commands)
