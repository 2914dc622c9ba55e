/* options.h - the command line of inferd-sim, as an experiment.
 *
 * One table has all options, and with each the commands in which it has an effect.  Elsewhere it is
 * refused: if it were ignored, its user would take the figures for the answer to another question.
 * Every error that can be detected early is reported before anything runs, including an output file
 * that cannot be written.
 *
 * Thread: that of main. */
#ifndef SIM_OPTIONS_H
#define SIM_OPTIONS_H

#include "experiment.h"

/* Reads argv into an initialised experiment of the kind.  EINVAL, EIO: the text names the option
 * and what was expected. */
inferd_status options_read(experiment *e, int argc, char **argv, inferd_err *err);
/* Notes the command line that gives the same figures, and the numbers left at their defaults. */
void options_note(const experiment *e, figures *f);
/* One line per option. */
void options_help(FILE *out);

#endif
