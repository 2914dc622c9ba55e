/* page.h - the files of the page, compiled into the program by page.cmake.
 * Thread: any; they are constants. */
#ifndef INFERD_PAGE_H
#define INFERD_PAGE_H

#include "inferd/base.h"

typedef struct page_file {
    const char *name, *type;    // "page.css", "text/css; charset=utf-8"
    const unsigned char *bytes; // [n_bytes]
    size_t n_bytes;
} page_file;

extern const page_file page_files[];
extern const size_t page_n_files;

#endif
