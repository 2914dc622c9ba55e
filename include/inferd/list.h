/* list.h - an intrusive doubly linked list.
 *
 * The head of an empty list points to itself.  A node is in exactly one list or in none; after
 * list_node_init and list_remove it is in none.
 *
 * Thread: that of the list's owner. */
#ifndef INFERD_LIST_H
#define INFERD_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct list_node {
    struct list_node *prev, *next;
} list_node;

#define LIST_ENTRY(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))
#define LIST_EACH(node, head)                                                                      \
    for (list_node *node = (head)->next; node != (head); node = node->next)
/* The body may remove `node`. */
#define LIST_EACH_SAFE(node, next_node, head)                                                      \
    for (list_node *node = (head)->next, *next_node = node->next; node != (head);                  \
         node = next_node, next_node = node->next)

static inline void list_node_init(list_node *n) {
    n->prev = n->next = n;
}
static inline bool list_empty(const list_node *head) {
    return head->next == head;
}
static inline bool list_linked(const list_node *n) {
    return n->next != n;
}

static inline void list_insert_before(list_node *at, list_node *n) {
    n->prev = at->prev;
    n->next = at;
    at->prev->next = n;
    at->prev = n;
}
static inline void list_push_back(list_node *head, list_node *n) {
    list_insert_before(head, n);
}
static inline void list_push_front(list_node *head, list_node *n) {
    list_insert_before(head->next, n);
}
static inline void list_remove(list_node *n) {
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_node_init(n);
}

#endif
