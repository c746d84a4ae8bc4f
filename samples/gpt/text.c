// SPDX-License-Identifier: Apache-2.0

// Declares scandir and alphasort. alphasort orders names as the locale does,
// and a program that sets none has the C locale: byte by byte, the same
// everywhere.
#define _POSIX_C_SOURCE 200809L

#include "samples/gpt/text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "samples/gpt/random.h"

// The identity of a file, the same under every name: hard links and symlinks
// lead to one file.
typedef struct identity {
  dev_t device;
  ino_t inode;
} identity;

typedef struct loader {
  text* data;
  identity* seen;
  size_t seen_count;
  char* message;
  size_t message_size;
} loader;

static bool fail(loader* l, const char* path, const char* why) {
  snprintf(l->message, l->message_size, "%s: %s", path, why);
  return false;
}

static bool append(uint8_t** to, size_t* to_bytes, const uint8_t* from,
                   size_t bytes) {
  if (bytes == 0) return true;
  uint8_t* grown = realloc(*to, *to_bytes + bytes);
  if (!grown) return false;
  memcpy(grown + *to_bytes, from, bytes);
  *to = grown;
  *to_bytes += bytes;
  return true;
}

// Returns true when the file was not seen before. Returns false as well when
// memory is short, with *ok cleared.
static bool first_time(loader* l, const struct stat* status, bool* ok) {
  for (size_t i = 0; i < l->seen_count; i++) {
    if (l->seen[i].device == status->st_dev &&
        l->seen[i].inode == status->st_ino) {
      return false;
    }
  }
  identity* grown = realloc(l->seen, (l->seen_count + 1) * sizeof(*grown));
  *ok = grown != NULL;
  if (!grown) return false;
  l->seen = grown;
  l->seen[l->seen_count++] = (identity){status->st_dev, status->st_ino};
  return true;
}

static bool read_file(loader* l, const char* path, const struct stat* status) {
  bool ok = true;
  if (!first_time(l, status, &ok)) {
    return ok || fail(l, path, "out of memory");
  }
  FILE* file = fopen(path, "rb");
  if (!file) return fail(l, path, strerror(errno));
  const size_t size = (size_t)status->st_size;
  uint8_t* bytes = malloc(size + 1);
  ok = bytes != NULL;
  if (!ok) {
    fail(l, path, "out of memory");
  } else {
    // A file that grows or shrinks meanwhile counts with the bytes that were
    // read.
    const size_t got = fread(bytes, 1, size, file);
    const size_t train = got - got / 10;
    text* data = l->data;
    if (ferror(file)) {
      ok = fail(l, path, strerror(errno));
    } else if (!append(&data->train, &data->train_bytes, bytes, train) ||
               !append(&data->held_out, &data->held_out_bytes, bytes + train,
                       got - train)) {
      ok = fail(l, path, "out of memory");
    } else {
      data->files++;
    }
  }
  free(bytes);
  fclose(file);
  return ok;
}

static bool read_folder(loader* l, const char* path) {
  struct dirent** entries = NULL;
  const int count = scandir(path, &entries, NULL, alphasort);
  if (count < 0) return fail(l, path, strerror(errno));
  bool ok = true;
  for (int i = 0; i < count; i++) {
    const size_t size = strlen(path) + strlen(entries[i]->d_name) + 2;
    char* name = ok ? malloc(size) : NULL;
    struct stat status;
    if (name) {
      snprintf(name, size, "%s/%s", path, entries[i]->d_name);
      // stat follows symlinks; one that leads nowhere is no regular file
      // either.
      if (stat(name, &status) == 0 && S_ISREG(status.st_mode)) {
        ok = read_file(l, name, &status);
      }
    } else if (ok) {
      ok = fail(l, path, "out of memory");
    }
    free(name);
    free(entries[i]);
  }
  free(entries);
  if (ok && l->data->files == 0) {
    return fail(l, path, "the folder has no regular files");
  }
  return ok;
}

static bool read_path(loader* l, const char* path) {
  struct stat status;
  if (stat(path, &status) != 0) return fail(l, path, strerror(errno));
  if (S_ISDIR(status.st_mode)) return read_folder(l, path);
  if (S_ISREG(status.st_mode)) return read_file(l, path, &status);
  return fail(l, path, "neither a file nor a folder");
}

bool text_load(text* data, const char* path, int context, char* message,
               size_t message_size) {
  *data = (text){0};
  loader l = {.data = data, .message = message, .message_size = message_size};
  bool ok = read_path(&l, path);
  free(l.seen);
  const size_t needed = (size_t)context + 1;
  if (ok && (data->train_bytes < needed || data->held_out_bytes < needed)) {
    char why[160];
    snprintf(why, sizeof(why),
             "too short: %zu bytes to train on and %zu held out, and a context "
             "of %d needs %zu of each",
             data->train_bytes, data->held_out_bytes, context, needed);
    ok = fail(&l, path, why);
  }
  if (!ok) text_free(data);
  return ok;
}

void text_training_sequence(const text* data, uint64_t seed, int64_t step,
                            int64_t index, int context, uint8_t* out) {
  const uint64_t starts = data->train_bytes - (uint64_t)context;
  // Batches have random streams of their own, apart from those of the initial
  // weights.
  const uint64_t stream = (UINT64_C(1) << 40) + (uint64_t)step;
  const uint64_t start = random_bits(seed, stream, (uint64_t)index) % starts;
  memcpy(out, data->train + start, (size_t)context + 1);
}

static int64_t held_out_sequences(const text* data, int context) {
  return (int64_t)((data->held_out_bytes - 1) / (size_t)context);
}

int64_t text_held_out_count(const text* data, int context, int64_t limit) {
  const int64_t all = held_out_sequences(data, context);
  return all < limit ? all : limit;
}

void text_held_out_sequence(const text* data, int64_t index, int context,
                            int64_t limit, uint8_t* out) {
  const int64_t all = held_out_sequences(data, context);
  const int64_t number = all <= limit ? index : index * all / limit;
  memcpy(out, data->held_out + number * context, (size_t)context + 1);
}

void text_free(text* data) {
  free(data->train);
  free(data->held_out);
  *data = (text){0};
}
