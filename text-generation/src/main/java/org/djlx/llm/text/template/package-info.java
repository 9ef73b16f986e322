// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Args           arguments of a call, bound to the names of its parameters
 * Filters        Jinja2's filters and tests, by name
 * Globals        functions that each template has, such as range and raise_exception
 * Json           the filter tojson: Python's json.dumps
 * Lexer          source to tokens; whitespace control and raw blocks
 * Loop           the variable loop
 * Numbers        Python's arithmetic and texts of numbers
 * Parser         tokens to a tree of nodes, which are evaluated directly
 * Repr           Python's repr() of values
 * Run            one rendering: its output, and limits of output, steps and depth
 * Scope          variables by name, nested in an enclosing scope
 * Strings        Python's methods of strings, by code points, and % formatting
 * Table          methods of a type, filters or tests by name, with their parameters
 * TemplateError  why a template cannot be parsed or rendered
 * Values         Python's semantics of values: truth, equality, order, attributes
 */
/**
 * An interpreter of Jinja2 templates with Python's semantics, for chat templates: untrusted
 * programs that come with a model. A value is null, a boolean, a number, a text, a list, a
 * dictionary or one of this package's own types; there is no reflection, so that a template reaches
 * nothing else. Output, steps and depth are bounded.
 *
 * <ul>
 *   <li>{@link Template} - a parsed template
 * </ul>
 */
package org.djlx.llm.text.template;
