/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llama.schema;

import com.google.gson.JsonObject;

/** A request that is refused, or an answer that failed, as the client is told. */
public final class ApiException extends RuntimeException {

    private static final long serialVersionUID = 1;

    /** The HTTP status. */
    private final int status;

    /** OpenAI's name for the kind of error. */
    private final String type;

    /** The entry of the request that is wrong, or null. */
    private final String option;

    /**
     * Creates the exception.
     *
     * @param status the HTTP status
     * @param type OpenAI's name for this kind of error, for example {@code invalid_request_error}
     * @param option the entry of the request that is wrong; null if it is none
     * @param message what is wrong
     */
    public ApiException(int status, String type, String option, String message) {
        super(message);
        this.status = status;
        this.type = type;
        this.option = option;
    }

    /** Returns that an entry of the request is wrong. */
    static ApiException badRequest(String option, String message) {
        return new ApiException(400, "invalid_request_error", option, message);
    }

    /**
     * Returns the HTTP status.
     *
     * @return the status, from 400 on
     */
    public int status() {
        return status;
    }

    /**
     * Returns the error in OpenAI's form.
     *
     * @return a JSON object on one line
     */
    public String toJson() {
        JsonObject error = new JsonObject();
        error.addProperty("message", getMessage());
        error.addProperty("type", type);
        error.addProperty("param", option);
        error.addProperty("code", status);
        JsonObject json = new JsonObject();
        json.add("error", error);
        return JsonOptions.GSON.toJson(json);
    }
}
