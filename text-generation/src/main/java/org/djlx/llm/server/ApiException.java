// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.djlx.llm.server.JsonOptions.object;

import com.google.gson.JsonObject;
import java.util.Map;

/** An error for the client: a refused request or a failed answer. */
public final class ApiException extends RuntimeException {

    private static final long serialVersionUID = 1;

    /** OpenAI's error types, by status; see {@link #type} for other statuses. */
    private static final Map<Integer, String> TYPES =
            Map.of(
                    401, "authentication_error",
                    403, "permission_error",
                    404, "not_found_error",
                    429, "rate_limit_error",
                    504, "timeout_error");

    private final int status;

    private final String option;

    /** OpenAI's code of the error, or null for the HTTP status. */
    private final String code;

    private final boolean ofInvocation;

    /**
     * Creates an error in OpenAI's schema. The status, 400 or more, decides the error's type, for
     * example {@code invalid_request_error}. {@code option} is the wrong entry of the request; null
     * if the error is not about an entry.
     */
    public ApiException(int status, String option, String message) {
        this(status, option, null, message, false, null);
    }

    private ApiException(
            int status,
            String option,
            String code,
            String message,
            boolean ofInvocation,
            Throwable cause) {
        super(message, cause);
        this.status = status;
        this.option = option;
        this.code = code;
        this.ofInvocation = ofInvocation;
    }

    /** {@return this error in DJL Serving's schema; this exception is its cause} */
    public ApiException forInvocation() {
        return new ApiException(status, option, code, getMessage(), true, this);
    }

    /** Returns this error with a code that clients look for. */
    ApiException withCode(String code) {
        return new ApiException(status, option, code, getMessage(), ofInvocation, this);
    }

    /** {@return an error with status 400} {@code option} is as in the constructor. */
    public static ApiException badRequest(String option, String message) {
        return new ApiException(400, option, message);
    }

    public int status() {
        return status;
    }

    /**
     * {@return the error for the client, a JSON object on one line: in OpenAI's schema, or {@code
     * {"error": message, "code": status}} in {@linkplain #forInvocation DJL Serving's}}
     */
    public String toJson() {
        if (ofInvocation) {
            return JsonOptions.GSON.toJson(object("error", getMessage(), "code", status));
        }
        JsonObject error = object("message", getMessage(), "type", type(), "param", option);
        error.add("code", JsonOptions.GSON.toJsonTree(code == null ? status : code));
        return JsonOptions.GSON.toJson(object("error", error));
    }

    private String type() {
        return TYPES.getOrDefault(status, status < 500 ? "invalid_request_error" : "server_error");
    }
}
