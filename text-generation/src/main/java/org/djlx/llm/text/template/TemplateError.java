// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

/** Why a template cannot be parsed or rendered. {@link Template} adds the line. */
class TemplateError extends RuntimeException {

    private static final long serialVersionUID = 1L;

    TemplateError(String format, Object... arguments) {
        super(arguments.length == 0 ? format : format.formatted(arguments), null, false, false);
    }

    /** The error of {@code raise_exception}. */
    static final class Raised extends TemplateError {

        private static final long serialVersionUID = 1L;

        Raised(String message) {
            super("%s", message);
        }
    }
}
