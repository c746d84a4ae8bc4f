// SPDX-License-Identifier: Apache-2.0

#define _POSIX_C_SOURCE 200809L

#include "samples/gpt/progress.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

struct progress {
  int64_t steps;
  int64_t first;  // The first step that was reported. 0: none yet.
  int64_t tokens_per_step;
  FILE* log;
  bool terminal;
  bool mid_line;
  double started;
  double shown;  // The time of the last bar or plain line.
  double validation_loss;
};

// A bar is drawn at most ten times a second, a line printed every five seconds.
static const double kBarInterval = 0.1;
static const double kLineInterval = 5;

double progress_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

progress* progress_open(int64_t steps, int64_t tokens_per_step,
                        const char* log_path, char* message,
                        size_t message_size) {
  progress* p = calloc(1, sizeof(*p));
  if (!p) {
    snprintf(message, message_size, "out of memory");
    return NULL;
  }
  if (log_path) {
    p->log = fopen(log_path, "w");
    if (!p->log) {
      snprintf(message, message_size, "%s: %s", log_path, strerror(errno));
      free(p);
      return NULL;
    }
  }
  p->steps = steps;
  p->tokens_per_step = tokens_per_step;
  // Under shardctl run, stdout is a pipe to a terminal.
  const char* terminal = getenv("SHARD_TERMINAL");
  p->terminal = isatty(STDOUT_FILENO) || (terminal && !strcmp(terminal, "1"));
  p->started = progress_now();
  p->validation_loss = NAN;
  return p;
}

// Writes a number, or null where it is not finite: JSON has no word for it.
static void log_number(FILE* log, const char* name, double value) {
  if (isfinite(value)) {
    // 17 digits give a double back bit by bit.
    fprintf(log, ",\"%s\":%.17g", name, value);
  } else {
    fprintf(log, ",\"%s\":null", name);
  }
}

static void log_step(const progress* p, const progress_step* s,
                     double tokens_per_second) {
  fprintf(p->log, "{\"step\":%lld", (long long)s->step);
  log_number(p->log, "loss", s->loss);
  log_number(p->log, "lr", s->lr);
  log_number(p->log, "grad_norm", s->grad_norm < 0 ? NAN : s->grad_norm);
  log_number(p->log, "tokens_per_second", tokens_per_second);
  log_number(p->log, "seconds", progress_now() - p->started);
  log_number(p->log, "bytes_communicated", (double)s->bytes_communicated);
  log_number(p->log, "bytes_overlapped", (double)s->bytes_overlapped);
  log_number(p->log, "seconds_exposed", s->seconds_exposed);
  fprintf(p->log, "%s}\n", s->skipped ? ",\"skipped\":true" : "");
}

enum { kLongestLine = 160 };

// Returns the width of the terminal. Each draw asks for it anew, because people
// resize windows.
static int line_width(void) {
  // shardctl run sets COLUMNS to the width that is left beside its prefix.
  const char* columns = getenv("COLUMNS");
  long width = columns ? strtol(columns, NULL, 10) : 0;
  struct winsize size;
  if (width < 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    width = size.ws_col;
  }
  if (width < 1) width = 80;
  // A full row may wrap, and then no redraw erases all of it.
  return width > kLongestLine ? kLongestLine : (int)width - 1;
}

static void draw_bar(progress* p, const progress_step* s,
                     double tokens_per_second, double seconds_left) {
  char validation[24] = "";
  if (isfinite(p->validation_loss)) {
    snprintf(validation, sizeof(validation), " (val %.3f)", p->validation_loss);
  }
  const long left = lround(seconds_left);
  char text[kLongestLine];
  snprintf(text, sizeof(text),
           "%lld/%lld  loss %.3f%s  %.0f tok/s  ETA %ld:%02ld",
           (long long)s->step, (long long)p->steps, s->loss, validation,
           tokens_per_second, left / 60, left % 60);

  // The bar gets the room beside the numbers. A bar of fewer than 4 cells is
  // not drawn: it would show nothing.
  enum { kShortestBar = 4, kLongestBar = 16 };
  const int width = line_width();
  int cells = width - (int)strlen(text) - (int)strlen("[] ");
  if (cells > kLongestBar) cells = kLongestBar;
  char bar[kLongestBar + 1] = "";
  for (int i = 0; cells >= kShortestBar && i < cells; i++) {
    bar[i] = i < s->step * cells / p->steps ? '#' : '.';
  }
  char line[kLongestLine + kLongestBar + 4];
  snprintf(line, sizeof(line), bar[0] ? "[%s] %s" : "%s%s", bar, text);
  // Blanks cover what a longer line left behind.
  printf("\r%-*.*s", width, width, line);
  fflush(stdout);
  p->mid_line = true;
}

void progress_report(progress* p, const progress_step* s) {
  if (!p) return;
  const double now = progress_now();
  const double elapsed = now - p->started;
  const double per_second =
      s->seconds > 0 ? (double)p->tokens_per_step / s->seconds : 0;
  if (p->log) log_step(p, s, per_second);

  if (p->first == 0) p->first = s->step;
  const bool ends = s->step == p->first || s->step == p->steps;
  const double interval = p->terminal ? kBarInterval : kLineInterval;
  if (!ends && now - p->shown < interval) return;
  p->shown = now;
  if (p->terminal) {
    // Estimated from the average step, which is steadier than the last one.
    const double left = elapsed / (double)(s->step - p->first + 1) *
                        (double)(p->steps - s->step);
    draw_bar(p, s, per_second, left);
  } else {
    printf("step %lld/%lld  loss %.4f  lr %.3g  ", (long long)s->step,
           (long long)p->steps, s->loss, s->lr);
    if (s->grad_norm >= 0) printf("grad norm %.3f  ", s->grad_norm);
    printf("%.0f tokens/s  %.1f s%s\n", per_second, elapsed,
           s->skipped ? "  skipped: a gradient was not finite" : "");
    fflush(stdout);
  }
}

void progress_report_validation(progress* p, int64_t step, double loss) {
  if (!p) return;
  p->validation_loss = loss;
  if (p->log) {
    fprintf(p->log, "{\"step\":%lld", (long long)step);
    log_number(p->log, "validation_loss", loss);
    log_number(p->log, "seconds", progress_now() - p->started);
    fprintf(p->log, "}\n");
    // Flushes here, so that a reader that follows the log sees whole
    // validations.
    fflush(p->log);
  }
  if (!p->terminal) {
    printf("step %lld/%lld  validation %.4f\n", (long long)step,
           (long long)p->steps, loss);
    fflush(stdout);
  }
}

void progress_end_line(progress* p) {
  if (!p || !p->mid_line) return;
  printf("\n");
  fflush(stdout);
  p->mid_line = false;
}

bool progress_close(progress* p, char* message, size_t message_size) {
  if (!p) return true;
  progress_end_line(p);
  bool ok = true;
  if (p->log) {
    // Only a flush tells whether all that was printed is written.
    ok = !ferror(p->log);
    ok = fclose(p->log) == 0 && ok;
    if (!ok) {
      snprintf(message, message_size, "the log was not written: %s",
               strerror(errno));
    }
  }
  free(p);
  return ok;
}
