// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/options.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind { INTEGER, NUMBER, SEED, STRING, FLAG } option_kind;

// An option, in one line of a table: parsing, checks, defaults and help read
// the same one.
typedef struct option {
  const char* name;
  option_kind kind;
  size_t offset;  // The place of the value in `options`.
  const char* initial;
  double min;
  double max;
  const char* value;
  const char* help;
} option;

#define AT(field) offsetof(options, field)

static const option kOptions[] = {
    {"layers", INTEGER, AT(model.layers), "4", 1, GPT_MAX_LAYERS, "N",
     "blocks"},
    {"width", INTEGER, AT(model.width), "128", 1, 8192, "N",
     "width of the residual stream;\n"
     "a multiple of --heads"},
    {"heads", INTEGER, AT(model.heads), "4", 1, 256, "N", "attention heads"},
    {"context", INTEGER, AT(model.context), "128", 1, 4096, "N",
     "bytes the model sees"},
    {"batch", INTEGER, AT(batch), "16", 1, 65536, "N",
     "sequences per step, all ranks together"},
    {"steps", INTEGER, AT(steps), "1500", 1, 100000000, "N", "optimizer steps"},
    {"lr", NUMBER, AT(lr), "4e-3", 1e-12, 10, "X", "peak learning rate"},
    {"min-lr", NUMBER, AT(min_lr), NULL, 0, 10, "X",
     "learning rate at the end of the cosine [--lr / 20]"},
    {"warm-up", INTEGER, AT(warm_up), "50", 0, 100000000, "N",
     "steps up to the peak learning rate"},
    {"weight-decay", NUMBER, AT(weight_decay), "0.1", 0, 10, "X",
     "weight decay of matrices; vectors have none"},
    {"optimizer", STRING, AT(optimizer), "adamw", 0, 0, "adamw|muon",
     "of the blocks' matrices; the rest has AdamW"},
    {"states", STRING, AT(states), "f32", 0, 0, "f32|bf16|q8",
     "how AdamW's moments are stored:\n"
     "8, 4 or 2 bytes per parameter"},
    {"stage", INTEGER, AT(stage), "1", 0, 3, "0|1|2|3",
     "ZeRO stage: 1 shards optimizer states, 2 also\n"
     "gradients, 3 also parameters, 0 nothing"},
    {"wrap", STRING, AT(wrap), "block", 0, 0, "none|block|POLICY",
     "units, gathered and reduced at once: the model,\n"
     "each block, or such as always, class?names=MLP,\n"
     "size?min_numel=50000"},
    {"partition", STRING, AT(partition), "even", 0, 0, "even|greedy",
     "how parameters are divided among ranks"},
    {"prefetch", INTEGER, AT(prefetch), "1", 0, 64, "N",
     "units in flight beside the one in use"},
    {"overlap", FLAG, AT(overlap), NULL, 0, 0, "",
     "let parameters be sent while the next step begins"},
    {"hybrid", INTEGER, AT(hybrid), "0", 0, 65536, "N",
     "stage 3: shard parameters among N ranks, and\n"
     "replicate them over such groups; 0: among all"},
    {"deterministic", FLAG, AT(deterministic), NULL, 0, 0, "",
     "the same bits from every stage, wrap and prefetch"},
    {"device", STRING, AT(device), "cpu", 0, 0, "cpu|cuda",
     "where the model and its tensors are; cuda: the\n"
     "next GPU for each rank; cuda:0: that one; with\n"
     "?offload=states, states are the host's"},
    {"capture", FLAG, AT(capture), NULL, 0, 0, "",
     "with --device cuda, on one rank: capture the second\n"
     "step as a CUDA graph, and replay it for the others"},
    {"clip", NUMBER, AT(clip), "1", 0, 1e30, "X",
     "largest norm of the gradient; 0 clips nothing"},
    {"seed", SEED, AT(seed), "1", 0, 0, "N",
     "of weights, batches and the sample"},
    {"text", STRING, AT(text), "/usr/share/common-licenses", 0, 0, "PATH",
     "a file, or a folder"},
    {"val-every", INTEGER, AT(val_every), "100", 0, 100000000, "N",
     "steps between validations; 0: only at the end"},
    {"rank-threads", INTEGER, AT(rank_threads), "0", 0, 256, "N",
     "run N ranks as threads of this process; 0: ranks\n"
     "come from the environment, as under shardctl run"},
    {"no-shared-memory", FLAG, AT(no_shared_memory), NULL, 0, 0, "",
     "exchange tensors as ranks on several hosts would"},
    {"log", STRING, AT(log), NULL, 0, 0, "FILE",
     "write one JSON object per step"},
    {"save", STRING, AT(save), NULL, 0, 0, "DIR",
     "save a checkpoint there at the end"},
    {"save-every", INTEGER, AT(save_every), "0", 0, 100000000, "N",
     "and one every N steps; 0: only at the end"},
    {"keep", INTEGER, AT(keep), "0", 0, 100000000, "N",
     "keep only the last N checkpoints; 0: all"},
    {"resume", STRING, AT(resume), NULL, 0, 0, "DIR",
     "go on from a checkpoint, or from the last one in a\n"
     "folder of them, saved by any number of ranks"},
    {"export", STRING, AT(export_path), NULL, 0, 0, "FILE",
     "write the parameters that were saved last to this\n"
     ".safetensors file, too"},
    {"sample", INTEGER, AT(sample), "300", 0, 100000, "N",
     "bytes of text to write at the end"},
    {"timeout", NUMBER, AT(timeout), "60", 0.001, DBL_MAX, "SECONDS",
     "longest wait for another rank, save and load"},
    {"check", FLAG, AT(check), NULL, 0, 0, "",
     "check the backward by finite differences, or with\n"
     "--device the device's by the processor's, and exit"},
    {"help", FLAG, AT(help), NULL, 0, 0, "", "print this, and exit"},
};

enum { kOptionCount = sizeof(kOptions) / sizeof(kOptions[0]) };

// Sets an option. Returns false when `value` is not one whole number, or is out
// of range.
static bool set(options* parsed, const option* o, const char* value) {
  char* field = (char*)parsed + o->offset;
  char* end = NULL;
  errno = 0;
  if (o->kind == STRING) {
    *(const char**)field = value;
    return value[0] != '\0';
  }
  if (o->kind == FLAG) {
    *(bool*)field = true;
    return true;
  }
  // The C library's parsers also take leading blanks, hexadecimal and words.
  if (value[strspn(value, "+-.eE0123456789")] != '\0') return false;
  if (value[0] == '\0') return false;
  if (o->kind == SEED) {
    *(uint64_t*)field = strtoull(value, &end, 10);
    return end != value && *end == '\0' && errno == 0 && value[0] != '-';
  }
  if (o->kind == INTEGER) {
    const long long number = strtoll(value, &end, 10);
    if (end == value || *end != '\0' || errno != 0) return false;
    if ((double)number < o->min || (double)number > o->max) return false;
    *(int*)field = (int)number;
    return true;
  }
  const double number = strtod(value, &end);
  if (end == value || *end != '\0' || !isfinite(number)) return false;
  if (number < o->min || number > o->max) return false;
  *(double*)field = number;
  return true;
}

static void say_what_is_wanted(const option* o, const char* value,
                               char* message, size_t size) {
  if (o->kind == INTEGER) {
    snprintf(message, size, "--%s: \"%s\" is not a whole number in %.0f..%.0f",
             o->name, value, o->min, o->max);
  } else if (o->kind == NUMBER) {
    snprintf(message, size, "--%s: \"%s\" is not a number in %g..%g", o->name,
             value, o->min, o->max);
  } else if (o->kind == SEED) {
    snprintf(message, size, "--%s: \"%s\" is not a whole number of 64 bits",
             o->name, value);
  } else {
    snprintf(message, size, "--%s: \"%s\" must not be empty", o->name, value);
  }
}

static const option* find(const char* name, size_t length) {
  for (int i = 0; i < kOptionCount; i++) {
    if (strlen(kOptions[i].name) == length &&
        memcmp(kOptions[i].name, name, length) == 0) {
      return &kOptions[i];
    }
  }
  return NULL;
}

// Returns whether `value` is one of the words in `allowed`, "this|that".
static bool one_of(const char* name, const char* value, const char* allowed,
                   char* message, size_t size) {
  const size_t length = strlen(value);
  for (const char* word = allowed; word; word = strchr(word, '|')) {
    if (*word == '|') word++;
    const size_t end = strcspn(word, "|");
    if (end == length && memcmp(word, value, length) == 0) return true;
  }
  snprintf(message, size, "--%s: \"%s\" is none of %s", name, value, allowed);
  return false;
}

// Checks the rules of --capture. libshard has more, and tells them itself.
static bool capture_fits(const options* p, char* message, size_t size) {
  if (!p->capture) return true;
  if (strncmp(p->device, "cuda", strlen("cuda")) != 0) {
    snprintf(message, size,
             "--capture: \"%s\" has no CUDA graphs; give --device cuda, or "
             "leave --capture out",
             p->device);
    return false;
  }
  if (p->rank_threads > 1) {
    snprintf(message, size,
             "--capture: runs on one rank, not on %d; leave --rank-threads or "
             "--capture out",
             p->rank_threads);
    return false;
  }
  if (p->check) {
    snprintf(message, size,
             "--capture: --check makes no steps; leave one of them out");
    return false;
  }
  return true;
}

// Checks the rules that concern several options.
static bool consistent(const options* p, char* message, size_t size) {
  if (p->model.width % p->model.heads != 0) {
    snprintf(message, size, "--width: %d is not a multiple of --heads %d",
             p->model.width, p->model.heads);
    return false;
  }
  if (!one_of("partition", p->partition, "even|greedy", message, size) ||
      !one_of("optimizer", p->optimizer, "adamw|muon", message, size) ||
      !one_of("states", p->states, "f32|bf16|q8", message, size)) {
    return false;
  }
  if (!capture_fits(p, message, size)) return false;
  if (p->hybrid > 0 && p->stage != 3) {
    snprintf(message, size, "--hybrid: %d needs --stage 3, not %d", p->hybrid,
             p->stage);
    return false;
  }
  if (!p->save && (p->save_every > 0 || p->keep > 0)) {
    snprintf(message, size, "--%s: %d needs --save",
             p->save_every > 0 ? "save-every" : "keep",
             p->save_every > 0 ? p->save_every : p->keep);
    return false;
  }
  if (!p->save && p->export_path) {
    snprintf(message, size, "--export: \"%s\" needs --save", p->export_path);
    return false;
  }
  // Checks the suffix now, and not after training, when the export begins.
  const char* dot = p->export_path ? strrchr(p->export_path, '.') : NULL;
  if (p->export_path && (!dot || strcmp(dot, ".safetensors") != 0)) {
    snprintf(message, size, "--export: \"%s\" does not end in .safetensors",
             p->export_path);
    return false;
  }
  if (p->min_lr > p->lr) {
    snprintf(message, size, "--min-lr: %g is above --lr %g", p->min_lr, p->lr);
    return false;
  }
  if (p->rank_threads > 0 && p->batch % p->rank_threads != 0) {
    snprintf(message, size, "--batch: %d does not divide by %d ranks", p->batch,
             p->rank_threads);
    return false;
  }
  return true;
}

bool options_parse(options* parsed, int argc, char* const* argv, char* message,
                   size_t message_size) {
  memset(parsed, 0, sizeof(*parsed));
  for (int i = 0; i < kOptionCount; i++) {
    if (kOptions[i].initial) set(parsed, &kOptions[i], kOptions[i].initial);
  }
  parsed->min_lr = -1;  // Not given.
  for (int i = 1; i < argc; i++) {
    const char* word = argv[i];
    const bool dashed = strncmp(word, "--", 2) == 0;
    const char* equals = dashed ? strchr(word, '=') : NULL;
    const char* name = dashed ? word + 2 : "";
    const option* o =
        find(name, equals ? (size_t)(equals - name) : strlen(name));
    if (!o) {
      snprintf(message, message_size, "unknown %s \"%s\"",
               word[0] == '-' ? "option" : "argument", word);
      return false;
    }
    const char* value = equals ? equals + 1 : NULL;
    if (o->kind == FLAG && value) {
      snprintf(message, message_size, "--%s: takes no value, got \"%s\"",
               o->name, value);
      return false;
    }
    if (o->kind != FLAG && !value) {
      if (i + 1 == argc) {
        snprintf(message, message_size, "--%s: a value is missing", o->name);
        return false;
      }
      value = argv[++i];
    }
    if (!set(parsed, o, value ? value : "")) {
      say_what_is_wanted(o, value ? value : "", message, message_size);
      return false;
    }
  }
  if (parsed->min_lr < 0) parsed->min_lr = parsed->lr / 20;
  return consistent(parsed, message, message_size);
}

void options_print_help(FILE* out) {
  fprintf(out,
          "usage: train_gpt [options]\n"
          "       shardctl run -n 2 -- train_gpt [options]\n"
          "\n"
          "Trains a byte-level GPT on a folder of text, on one or more ranks.\n"
          "\n");
  for (int i = 0; i < kOptionCount; i++) {
    const option* o = &kOptions[i];
    char left[40];
    snprintf(left, sizeof(left), "--%s %s", o->name, o->value);
    fprintf(out, "  %-26s", left);
    for (const char* c = o->help; *c; c++) {
      fputc(*c, out);
      if (*c == '\n') fprintf(out, "  %-26s", "");
    }
    if (o->initial) fprintf(out, " [%s]", o->initial);
    fputc('\n', out);
  }
}
