/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.api;

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

    /** Whether the request is in DJL Serving's schema, and the error so, too. */
    private final boolean ofInvocation;

    /**
     * Creates the exception, in OpenAI's form.
     *
     * @param status the HTTP status
     * @param type OpenAI's name for this kind of error, for example {@code invalid_request_error}
     * @param option the entry of the request that is wrong; null if it is none
     * @param message what is wrong
     */
    public ApiException(int status, String type, String option, String message) {
        this(status, type, option, message, false, null);
    }

    private ApiException(
            int status,
            String type,
            String option,
            String message,
            boolean ofInvocation,
            Throwable cause) {
        super(message, cause);
        this.status = status;
        this.type = type;
        this.option = option;
        this.ofInvocation = ofInvocation;
    }

    /**
     * Returns this error in the form of DJL Serving's schema.
     *
     * @return the same error, caused by this
     */
    public ApiException forInvocation() {
        return new ApiException(status, type, option, getMessage(), true, this);
    }

    /** Returns that an entry of the request is wrong. */
    public static ApiException badRequest(String option, String message) {
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
     * Returns the error as the client is told.
     *
     * @return a JSON object on one line: OpenAI's, or {@code {"error": message, "code": status}} if
     *     it is {@linkplain #forInvocation for an invocation}
     */
    public String toJson() {
        JsonObject json = new JsonObject();
        if (ofInvocation) {
            json.addProperty("error", getMessage());
            json.addProperty("code", status);
            return JsonOptions.GSON.toJson(json);
        }
        JsonObject error = new JsonObject();
        error.addProperty("message", getMessage());
        error.addProperty("type", type);
        error.addProperty("param", option);
        error.addProperty("code", status);
        json.add("error", error);
        return JsonOptions.GSON.toJson(json);
    }
}
